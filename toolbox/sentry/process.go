package sentry

import (
	"context"
	"os"
	"strings"
	"syscall"
)

// Program is what to run. Ids are those of the guest.
type Program struct {
	Argv, Env  []string
	WorkingDir string
	UID, GID   uint32
	// Groups are the supplementary groups.
	Groups []uint32
	// Stdio become descriptors 0, 1, 2. They must be pipes: the sentry writes a regular file from its start.
	Stdio [3]*os.File
	// More become the descriptors behind those; as Stdio.
	More []*os.File
}

type capabilities struct{ PermittedCaps, InheritableCaps, EffectiveCaps, BoundingCaps, AmbientCaps uint64 }

type execArgs struct {
	Argv             []string `json:"argv"`
	Envv             []string `json:"envv"`
	WorkingDirectory string   `json:"wd"`
	KUID, KGID       uint32
	ExtraKGIDs       []uint32
	NoNewPrivileges  bool
	Capabilities     *capabilities
	GuestFDs         []int
	ContainerID      string
}

// Execute starts a program without any capability and returns its pid in the guest. The sentry holds copies of the stdio.
// Failure says whether the program, rather than the sandbox, was at fault.
func (c *Client) Execute(ctx context.Context, p Program) (int32, error) {
	var pid int32
	files := append(p.Stdio[:len(p.Stdio):len(p.Stdio)], p.More...)
	fds := make([]int, len(files))
	for i := range fds {
		fds[i] = i
	}
	err := c.call(ctx, "containerManager.ExecuteAsync", execArgs{
		Argv: p.Argv, Envv: p.Env, WorkingDirectory: p.WorkingDir, KUID: p.UID, KGID: p.GID, ExtraKGIDs: p.Groups,
		// Capabilities left out mean all of them for uid 0, and with them no limit of processes.
		NoNewPrivileges: true, Capabilities: &capabilities{}, GuestFDs: fds, ContainerID: c.container,
	}, &pid, files...)
	return pid, err
}

// Wait blocks until a program that Execute started has ended.
func (c *Client) Wait(ctx context.Context, pid int32) (syscall.WaitStatus, error) {
	var status uint32
	err := c.call(ctx, "containerManager.WaitPID", map[string]any{"PID": pid, "CID": c.container}, &status)
	return syscall.WaitStatus(status), err
}

// Signal sends a signal to one process.
func (c *Client) Signal(ctx context.Context, pid int32, signal syscall.Signal) error {
	return c.call(ctx, "containerManager.Signal", map[string]any{"CID": c.container, "PID": pid, "Signo": int32(signal), "Mode": 0}, nil)
}

// Fault is why a program did not start.
type Fault int

// The faults of a start, as a shell tells them apart.
const (
	Other Fault = iota
	NotFound
	NotExecutable
	NoWorkingDir
	NoProcesses
)

// Classify reads the sentry's words, the only thing it answers with; the tests pin them for the runsc version in use.
func (e *Error) Classify() Fault {
	t := e.Text
	has := func(s string) bool { return strings.Contains(t, s) }
	switch {
	case has("initial working directory"):
		return NoWorkingDir
	case has("permission denied"), has("exec format error"), has("is a directory"), has("argument list too long"), has("operation not permitted"):
		return NotExecutable
	case has("no such file or directory"), has("not a directory"), has("error finding executable"):
		return NotFound
	case has("resource temporarily unavailable"), has("try again"):
		return NoProcesses
	}
	return Other
}
