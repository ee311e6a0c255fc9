package sentry

import (
	"context"
	"errors"
	"syscall"
	"time"
)

// Control runs programs in a sandbox whose sentry is up. Client does it over the control socket, Command with the runsc
// program.
type Control interface {
	// Execute starts a program without any capability and returns its pid in the guest; Stdio stays the caller's to close. An
	// *Error means that the sandbox refused it.
	Execute(context.Context, Program) (int32, error)
	// Wait blocks until a program that Execute started has ended. It may be called once for each.
	Wait(ctx context.Context, pid int32) (syscall.WaitStatus, error)
	// Signal sends a signal to one process.
	Signal(ctx context.Context, pid int32, signal syscall.Signal) error
	// SignalGroup sends a signal to every process that has a supplementary group for which member is true, at one moment;
	// signal 0 only looks. ErrUnsupported where that cannot be done from outside.
	SignalGroup(ctx context.Context, member func(group uint32) bool, signal syscall.Signal) (Census, error)
	// Tasks counts the processes and threads of each user of the guest, those that ended and were not waited for included: the
	// number that the user's limit of processes is compared with. ErrUnsupported where it cannot be had.
	Tasks(context.Context) (map[uint32]int, error)
	// Written is how many bytes the sentry has written so far to answer questions of the kinds above. They are in the host's
	// count of what it wrote.
	Written() uint64
	// Times is the CPU time of the programs that have each of the supplementary groups, by group: of those that run and of
	// those that they have waited for. ErrUnsupported where it cannot be had.
	Times(ctx context.Context, groups []uint32) (map[uint32]time.Duration, error)
	Close()
}

// ErrUnsupported: this way of control does not offer it.
var ErrUnsupported = errors.New("not offered by this control of the sentry")

var (
	_ Control = (*Client)(nil)
	_ Control = (*Command)(nil)
)
