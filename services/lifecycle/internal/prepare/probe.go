package prepare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// probeLimit is generous: a sandbox starts in a fraction of a second, but a platform that does not work hangs for ever.
const probeLimit = 30 * time.Second

// Probe starts a sandbox with the runsc at path and waits for a program in it to end well. Only the systrap platform is tried:
// whether another works cannot be told from the presence of its device. The program is the runsc binary itself, which is
// static, so nothing else is needed. Whatever it started is gone when it returns.
func Probe(ctx context.Context, path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	if err := checkStatic(path); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sandtrail-probe-")
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := writeProbe(dir, path); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	return runProbe(ctx, dir, path)
}

func runProbe(ctx context.Context, dir, path string) error {
	args := []string{"--root", filepath.Join(dir, "state"), "--platform", "systrap", "--network", "none", "--ignore-cgroups"}
	if os.Geteuid() != 0 {
		args = append(args, "--rootless")
	}
	cmd := exec.CommandContext(ctx, path, append(args, "run", "--bundle", dir, "probe")...)
	// Its processes form a group of their own, and die with it: a probe that hangs leaves nothing.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		// runsc leaves a mount in its state directory; in a namespace of its own it goes with the probe.
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	cmd.WaitDelay = time.Second
	var last tail
	cmd.Stdout, cmd.Stderr = &last, &last
	err := cmd.Run()
	if ctx.Err() != nil {
		return fmt.Errorf("a test sandbox did not end within %s: %w", probeLimit, ctx.Err())
	}
	if err != nil {
		return fmt.Errorf("a test sandbox failed: %w: %s", err, last.b)
	}
	return nil
}

func killGroup(pid int) error {
	if err := unix.Kill(-pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

func writeProbe(dir, program string) error {
	root := filepath.Join(dir, "rootfs")
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "probe"), nil, 0o755); err != nil {
		return err
	}
	spec := map[string]any{
		"ociVersion": "1.0.0",
		"process":    map[string]any{"user": map[string]any{"uid": 0, "gid": 0}, "args": []string{"/probe", "--version"}, "cwd": "/"},
		"root":       map[string]any{"path": "rootfs", "readonly": true},
		"hostname":   "probe",
		"mounts": []map[string]any{
			{"destination": "/probe", "type": "bind", "source": program, "options": []string{"ro"}},
			{"destination": "/proc", "type": "proc", "source": "proc"},
		},
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600)
}
