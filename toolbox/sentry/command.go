package sentry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Command controls a sandbox with the runsc program, which speaks its sentry's own version of the control protocol. Each
// running program costs a runsc process; a start takes four times as long as over the control socket. Of a program that
// ended with a code above 128 runsc does not say whether a signal was the cause: it counts as one where there is such a signal.
type Command struct {
	runsc     string
	flags     []string
	container string
	dir       string
	reaper    *Reaper

	mu      sync.Mutex
	next    uint64
	running map[int32]*runscExec
}

// runscExec is one runsc exec.
type runscExec struct {
	ended <-chan syscall.WaitStatus
	said  *os.File
}

// NewCommand controls a container by a runsc program with the given flags, which name its root directory. dir is a directory
// for small files. The reaper must be told of every dead child of this process.
func NewCommand(runsc string, flags []string, container, dir string, reaper *Reaper) *Command {
	return &Command{runsc: runsc, flags: flags, container: container, dir: dir, reaper: reaper, running: map[int32]*runscExec{}}
}

const (
	// startPoll is between two looks for the pid of a program, startLimit how long it is looked for.
	startPoll  = 2 * time.Millisecond
	startLimit = 30 * time.Second
	// maxSaid is read of what runsc says about a failure.
	maxSaid = 16 << 10
)

// process is the OCI description of a program.
type process struct {
	User struct {
		UID    uint32   `json:"uid"`
		GID    uint32   `json:"gid"`
		Groups []uint32 `json:"additionalGids,omitempty"`
	} `json:"user"`
	Args            []string  `json:"args"`
	Env             []string  `json:"env"`
	Cwd             string    `json:"cwd"`
	NoNewPrivileges bool      `json:"noNewPrivileges"`
	Capabilities    *struct{} `json:"capabilities"`
}

// Execute implements Control.
func (c *Command) Execute(ctx context.Context, p Program) (int32, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	description, err := describe(p)
	if err != nil {
		return 0, err
	}
	defer description.Close()
	said, err := memory("said", nil)
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	c.next++
	pidFile := filepath.Join(c.dir, fmt.Sprintf("exec-%d.pid", c.next))
	c.mu.Unlock()
	defer os.Remove(pidFile)
	// The program's descriptors are others than runsc's own, so that what runsc says is never output. Nothing of the program,
	// its environment above all, is in a file or in the arguments.
	args := append([]string{}, c.flags...)
	args = append(args, "exec", "--process", "/proc/self/fd/3", "--internal-pid-file", pidFile)
	files := append(p.Stdio[:len(p.Stdio):len(p.Stdio)], p.More...)
	for i := range files {
		args = append(args, "--pass-fd", fmt.Sprintf("%d:%d", 4+i, i))
	}
	args = append(args, c.container)
	cmd := exec.Command(c.runsc, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stderr = said
	cmd.ExtraFiles = append([]*os.File{description}, files...)
	child, ended, err := c.reaper.Start(cmd)
	if err != nil {
		said.Close()
		return 0, fmt.Errorf("start runsc exec: %w", err)
	}
	x := &runscExec{ended: ended, said: said}
	pid, err := c.started(ctx, x, pidFile)
	if err != nil {
		_ = syscall.Kill(child, syscall.SIGKILL)
		said.Close()
		return 0, err
	}
	c.mu.Lock()
	c.running[pid] = x
	c.mu.Unlock()
	return pid, nil
}

// describe puts the program's description into memory that runsc can open.
func describe(p Program) (*os.File, error) {
	d := process{Args: p.Argv, Env: p.Env, Cwd: p.WorkingDir, NoNewPrivileges: true, Capabilities: &struct{}{}}
	d.User.UID, d.User.GID, d.User.Groups = p.UID, p.GID, p.Groups
	b, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	return memory("program", b)
}

func memory(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make memory file: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.WriteAt(content, 0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// started waits for the pid of the program.
func (c *Command) started(ctx context.Context, x *runscExec, pidFile string) (int32, error) {
	tick := time.NewTicker(startPoll)
	defer tick.Stop()
	for {
		over := false
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("runsc exec: %w", ctx.Err())
		case status := <-x.ended:
			over = true
			// For Wait.
			again := make(chan syscall.WaitStatus, 1)
			again <- status
			x.ended = again
		case <-tick.C:
		}
		b, err := os.ReadFile(pidFile)
		if err == nil {
			pid, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 32)
			return int32(pid), err
		}
		if over {
			return 0, &Error{Text: x.words()}
		}
	}
}

// words is what runsc said.
func (x *runscExec) words() string {
	b, _ := io.ReadAll(io.NewSectionReader(x.said, 0, maxSaid))
	return string(bytes.TrimSpace(b))
}

// Wait implements Control.
func (c *Command) Wait(ctx context.Context, pid int32) (syscall.WaitStatus, error) {
	c.mu.Lock()
	x := c.running[pid]
	delete(c.running, pid)
	c.mu.Unlock()
	if x == nil {
		return 0, errors.New("no such program")
	}
	defer x.said.Close()
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case status := <-x.ended:
		if words := x.words(); !status.Exited() || words != "" {
			// Only a runsc that failed says anything.
			return 0, fmt.Errorf("%w: runsc exec ended with %#x", ErrGone, uint32(status))
		}
		code := status.ExitStatus()
		if n := code - 128; n > 0 && n <= 64 {
			return syscall.WaitStatus(n), nil
		}
		return status, nil
	}
}

// Signal implements Control.
func (c *Command) Signal(ctx context.Context, pid int32, signal syscall.Signal) error {
	said, err := memory("said", nil)
	if err != nil {
		return err
	}
	defer said.Close()
	args := append([]string{}, c.flags...)
	cmd := exec.Command(c.runsc, append(args, "kill", "--pid", strconv.Itoa(int(pid)), c.container, strconv.Itoa(int(signal)))...)
	cmd.Stderr = said
	_, ended, err := c.reaper.Start(cmd)
	if err != nil {
		return fmt.Errorf("start runsc kill: %w", err)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case status := <-ended:
		if status.ExitStatus() != 0 {
			return &Error{Text: (&runscExec{said: said}).words()}
		}
		return nil
	}
}

// Times implements Control: runsc has no way to ask.
func (c *Command) Times(context.Context, []uint32) (map[uint32]time.Duration, error) {
	return nil, ErrUnsupported
}

// SignalGroup implements Control: runsc has no way to do it.
func (c *Command) SignalGroup(context.Context, func(uint32) bool, syscall.Signal) (Census, error) {
	return Census{}, ErrUnsupported
}

// Tasks implements Control: runsc has no way to ask.
func (c *Command) Tasks(context.Context) (map[uint32]int, error) { return nil, ErrUnsupported }

// Written implements Control.
func (c *Command) Written() uint64 { return 0 }

// Close implements Control. Programs end with their sandbox.
func (c *Command) Close() {}
