package agent

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// threads are made at the start: at the limit of processes no more can be had, and a runtime that wants one and gets none ends.
const threads = 48

// faults are the signals that the runtime takes for its own faults when a program forges where they come from. Ignored, a sent one does
// nothing; a real one ends the agent, also where the runtime would have made a panic of it.
var faults = []unix.Signal{unix.SIGILL, unix.SIGTRAP, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSTKFLT, unix.SIGSYS}

// protect keeps programs of the same user from reading or stopping the agent as far as the kernel allows. The channel has every
// signal that came; each SIGCHLD may stand for several.
func protect(o Options) (<-chan os.Signal, error) {
	for _, p := range []struct {
		what   int
		value  uintptr
		reason string
	}{
		// No other process of the user may read or trace it, nor open its descriptors.
		{unix.PR_SET_DUMPABLE, 0, "forbid tracing"},
		// Orphans of programs come here also where it is not the first process.
		{unix.PR_SET_CHILD_SUBREAPER, 1, "adopt orphans"},
		{unix.PR_SET_NO_NEW_PRIVS, 1, "forbid new privileges"},
	} {
		if err := unix.Prctl(p.what, p.value, 0, 0, 0); err != nil {
			return nil, fmt.Errorf("%s: %w", p.reason, err)
		}
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return nil, fmt.Errorf("forbid core files: %w", err)
	}
	// Taken and not ignored: what a process ignores, the programs that it starts ignore too.
	signals := make(chan os.Signal, 64)
	signal.Notify(signals)
	for _, s := range faults {
		if err := ignore(s); err != nil {
			return nil, fmt.Errorf("ignore %s: %w", s, err)
		}
	}
	return signals, limitProcesses(o.Processes)
}

// ignore goes past the runtime, which does not let these be ignored.
func ignore(s unix.Signal) error {
	action := struct {
		handler, flags, restorer uintptr
		mask                     uint64
	}{handler: 1}
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&action)), 0, unsafe.Sizeof(action.mask), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// limitProcesses bounds the processes and threads of the user, the agent's own on top.
func limitProcesses(most uint64) error {
	if most == 0 {
		return nil
	}
	var all sync.WaitGroup
	all.Add(threads)
	for range threads {
		go func() {
			// A thread that is given back is kept for later.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			all.Done()
			all.Wait()
		}()
	}
	all.Wait()
	own, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("count threads: %w", err)
	}
	limit := most + uint64(len(own))
	err = unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: limit, Max: limit})
	if errors.Is(err, unix.EPERM) {
		// A lower one is in force already.
		return nil
	}
	return err
}
