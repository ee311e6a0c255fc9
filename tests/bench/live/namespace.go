package live

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// inNamespace runs fn on a thread of its own that has joined the mount namespace of pid and ends with fn.
func inNamespace(pid int, fn func() error) error {
	result := make(chan error, 1)
	go func() {
		// Not unlocked: the thread, which is of no use for others any more, ends with the goroutine.
		runtime.LockOSThread()
		if err := join(pid); err != nil {
			result <- fmt.Errorf("join the mount namespace of %d: %w", pid, err)
			return
		}
		result <- fn()
	}()
	return <-result
}

func join(pid int) error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return err
	}
	defer f.Close()
	// A thread that shares its root and working directory with others cannot change the namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	return unix.Setns(int(f.Fd()), unix.CLONE_NEWNS)
}
