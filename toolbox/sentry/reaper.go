package sentry

import (
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Reaper takes every dead child of a process that adopts orphans, and tells those who wait for one of theirs. Without it two
// would race for the same end.
type Reaper struct {
	mu      sync.Mutex
	waiting map[int]chan syscall.WaitStatus
}

// NewReaper makes one; Reap does the work.
func NewReaper() *Reaper { return &Reaper{waiting: map[int]chan syscall.WaitStatus{}} }

// Start starts a command, whose Wait must not be called: its end comes on the channel once Reap has taken it. Its streams must
// be files.
func (r *Reaper) Start(cmd *exec.Cmd) (int, <-chan syscall.WaitStatus, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	pid := cmd.Process.Pid
	_ = cmd.Process.Release()
	ended := make(chan syscall.WaitStatus, 1)
	r.waiting[pid] = ended
	return pid, ended, nil
}

// Reap takes the children that are dead now. It must be called on every SIGCHLD, and must not be while a child is waited for
// in another way.
func (r *Reaper) Reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if ended := r.waiting[pid]; ended != nil {
			ended <- syscall.WaitStatus(status)
			delete(r.waiting, pid)
		}
	}
}
