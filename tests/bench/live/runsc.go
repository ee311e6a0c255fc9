package live

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Plain runs sandboxes with nothing but the runsc command, of the same image.
type Plain struct {
	dir, runsc, rootfs string
	count              int
}

// NewPlain prepares it. Close it.
func (u *Up) NewPlain() (*Plain, error) {
	runsc, err := Runsc()
	if err != nil {
		return nil, err
	}
	rootfs, err := u.Rootfs()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "stplain-")
	if err != nil {
		return nil, err
	}
	for _, d := range []string{"root", "overlay"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			return nil, err
		}
	}
	return &Plain{dir: dir, runsc: runsc, rootfs: rootfs}, nil
}

// Close removes its files, and the mount that runsc leaves in its root.
func (p *Plain) Close() error {
	if err := unix.Unmount(filepath.Join(p.dir, "root", "null-netns"), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount what runsc left: %w", err)
	}
	return os.RemoveAll(p.dir)
}

// Running is a sandbox of Plain.
type Running struct {
	// FirstByte is the time from the start of the command to the first byte of the program.
	FirstByte time.Duration
	PID       int
	cmd       *exec.Cmd
	stop      func()
	id        string
	p         *Plain
}

// Run starts a program with `runsc run` and returns at its first byte of output. End it.
func (p *Plain) Run(program ...string) (*Running, error) {
	p.count++
	id := fmt.Sprintf("plain%05d", p.count)
	bundle := filepath.Join(p.dir, id)
	if err := p.bundle(bundle, program); err != nil {
		return nil, err
	}
	cmd := exec.Command(p.runsc, "--root", filepath.Join(p.dir, "root"), "--platform", "systrap", "--network", "none", "--ignore-cgroups",
		"--overlay2=root:dir="+filepath.Join(p.dir, "overlay"), "run", "-bundle", bundle, id)
	// A pipe that stays open: `sleep` and the like end when it is closed.
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	_, err = bufio.NewReaderSize(out, 16).ReadByte()
	r := &Running{FirstByte: time.Since(begin), PID: cmd.Process.Pid, cmd: cmd, id: id, p: p, stop: func() { _ = in.Close() }}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("runsc run: %w", err), r.End())
	}
	return r, nil
}

// End closes the program's standard input and waits for its end.
func (r *Running) End() error {
	r.stop()
	err := r.cmd.Wait()
	return errors.Join(err, os.RemoveAll(filepath.Join(r.p.dir, r.id)))
}

func (p *Plain) bundle(dir string, program []string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	type object = map[string]any
	namespaces := []object{}
	for _, n := range []string{"pid", "mount", "ipc", "uts", "network"} {
		namespaces = append(namespaces, object{"type": n})
	}
	config, err := json.Marshal(object{
		"ociVersion": "1.0.2", "root": object{"path": p.rootfs, "readonly": false}, "hostname": "plain",
		"process": object{"user": object{"uid": 0, "gid": 0}, "cwd": "/", "args": program, "env": []string{"PATH=/usr/bin:/bin"}},
		"mounts": []object{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
		},
		"linux": object{"namespaces": namespaces},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600)
}
