package app

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/services/lifecycle/internal/prepare"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/workspace"
	"github.com/sandtrail/sandtrail/toolbox/cgroup"
)

// Check is one thing that a worker on this host needs.
type Check struct {
	Name string
	OK   bool
	// Detail is what was found, Fix what to do where that is not enough; empty otherwise.
	Detail string
	Fix    string
}

// minFree is what the state directory's file system should have left, in bytes: the default image and some workspaces.
const minFree = 4 << 30

// Checks says what this host lacks for the worker role. It changes nothing outside of the cache, where it gets runsc if that is
// not there yet; a sandbox is started and ended to see whether one can.
func Checks(ctx context.Context, cfg Config, log *slog.Logger) []Check {
	cfg = cfg.withDefaults()
	return []Check{
		checkKernel(),
		checkPrivileges(),
		checkCgroups(),
		checkState(cfg.StateDir),
		checkProgram("mkfs.ext4", "e2fsprogs", "it makes the workspaces"),
		checkSandbox(ctx, cfg, log),
		checkToolbox(ctx, cfg, log),
	}
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
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err == nil && (major < 4 || major == 4 && minor < 14) {
		return Check{Name: "kernel", Detail: release, Fix: "gVisor's systrap platform needs Linux 4.14 or later"}
	}
	return Check{Name: "kernel", OK: true, Detail: "Linux " + release}
}

func checkPrivileges() Check {
	if os.Geteuid() == 0 {
		return Check{Name: "privileges", OK: true, Detail: "root: limits are enforced by cgroups, guests have ids of their own"}
	}
	return Check{Name: "privileges", OK: false, Detail: "not root: a worker cannot mount workspaces or limit sandboxes", Fix: "run as root"}
}

func checkCgroups() Check {
	const name = "sandtrail-doctor"
	g, err := cgroup.Open(name)
	if err == nil {
		err = g.Create(cgroup.Limits{PIDs: 16})
	}
	if err != nil {
		return Check{
			Name: "cgroups", Detail: err.Error(),
			Fix: "run as root, or delegate a cgroup (systemd-run --user --scope -p Delegate=yes …); without it limits and usage come from the sentry alone",
		}
	}
	if err := g.Remove(); err != nil {
		return verdict("cgroups", err, "", "remove the group "+name)
	}
	return Check{Name: "cgroups", OK: true, Detail: "groups can be made and removed"}
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
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return verdict("state directory", err, "", fix)
	}
	free := st.Bavail * uint64(st.Bsize) //nolint:gosec // a block size is positive
	detail := fmt.Sprintf("%s: %d MiB free", dir, free>>20)
	if free < minFree {
		return Check{Name: "state directory", Detail: detail, Fix: fmt.Sprintf("make room: at least %d MiB", minFree>>20)}
	}
	return Check{Name: "state directory", OK: true, Detail: detail}
}

func checkProgram(program, pkg, why string) Check {
	path, err := workspace.Program(program)
	return verdict(program, err, path, "apt-get install "+pkg+": "+why)
}

func checkSandbox(ctx context.Context, cfg Config, log *slog.Logger) Check {
	path, err := prepare.Runsc(ctx, cfg.Driver.prepare(log))
	if err != nil {
		return verdict("runsc", err, "", "get Go and a network, or name a runsc binary")
	}
	return verdict("runsc", prepare.Probe(ctx, path), path+": a sandbox ran", "a sandbox cannot run here; see docs/ARCHITECTURE.md for what gVisor needs")
}

func checkToolbox(ctx context.Context, cfg Config, log *slog.Logger) Check {
	path, err := prepare.Toolbox(ctx, cfg.Driver.prepare(log))
	return verdict("toolbox", err, path, "get Go and run from the source tree, or name a toolbox binary")
}
