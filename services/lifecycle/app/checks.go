package app

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/services/lifecycle/internal/host"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/prepare"
)

// Check is one thing that a worker on this host needs.
type Check struct {
	Name string
	OK   bool
	// Detail is what was found, Fix what to do where that is not enough; empty otherwise.
	Detail, Fix string
	// Optional: sandboxes run without it, with less.
	Optional bool
}

// Checks says what this host lacks for the worker role. It changes nothing outside of the cache, where it gets runsc if that is
// not there yet; a sandbox is started and ended to see whether one can.
func Checks(ctx context.Context, cfg Config, log *slog.Logger) []Check {
	cfg = cfg.withDefaults()
	runsc, err := prepare.Runsc(ctx, cfg.Driver.prepare(log))
	checks := []Check{checkKernel(), checkState(cfg.StateDir)}
	for _, c := range host.Checks(ctx, host.Config{StateDir: cfg.StateDir, Runsc: runsc}) {
		if c.Name == "runsc" && err != nil {
			c = host.Check{Name: c.Name, Detail: err.Error(), Fix: "get Go and a network, or name a runsc binary"}
		}
		checks = append(checks, Check(c))
	}
	return append(checks, checkToolbox(ctx, cfg, log))
}

func verdict(name string, err error, detail, fix string) Check {
	if err != nil {
		return Check{Name: name, Detail: err.Error(), Fix: fix}
	}
	return Check{Name: name, OK: true, Detail: detail}
}

func checkKernel() Check {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return verdict("kernel", err, "", "run on Linux")
	}
	release := unix.ByteSliceToString(u.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err == nil {
		older := func(than, thanMinor int) bool { return major < than || major == than && minor < thanMinor }
		switch {
		case older(4, 14):
			return Check{Name: "kernel", Detail: release, Fix: "gVisor's systrap platform needs Linux 4.14 or later"}
		case older(5, 11) && os.Geteuid() != 0:
			return Check{Name: "kernel", Detail: release, Fix: "run the worker as root, or Linux 5.11 or later: older ones let no common user mount an overlay"}
		}
	}
	return Check{Name: "kernel", OK: true, Detail: "Linux " + release}
}

func checkState(dir string) Check {
	const fix = "choose another directory with --state"
	if dir == "" {
		return Check{Name: "state directory", Detail: "not set", Fix: fix}
	}
	// What does not exist yet is judged by the directory that it will be made in.
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		return verdict("state directory", fmt.Errorf("%s cannot be written to: %w", dir, err), "", fix)
	}
	return Check{Name: "state directory", OK: true, Detail: dir + " can be written to"}
}

func checkToolbox(ctx context.Context, cfg Config, log *slog.Logger) Check {
	path, err := prepare.Toolbox(ctx, cfg.Driver.prepare(log))
	return verdict("toolbox", err, path, "get Go and run from the source tree, or name a toolbox binary")
}
