package agent

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// death is how a child ended and what it used, those of its children included that it had waited for.
type death struct {
	status syscall.WaitStatus
	used   spent
}

// spent is what processes have used.
type spent struct {
	cpu         time.Duration
	read, write uint64
	// peak is the most memory of one of them.
	peak uint64
}

func (s *spent) add(o spent) {
	s.cpu += o.cpu
	s.read += o.read
	s.write += o.write
	s.peak = max(s.peak, o.peak)
}

// children starts programs and takes every dead child, of which most are orphans that programs left.
type children struct {
	mu      sync.Mutex
	waiting map[int]chan death
	// mark is that of the program started last; 0: marks cannot be set.
	mark uint64
	// used is what all dead children used, and orphans what those of each mark did.
	used    spent
	orphans map[uint64]*spent
}

func newChildren() *children {
	return &children{waiting: map[int]chan death{}, orphans: map[uint64]*spent{}, mark: firstMark()}
}

// start runs a program as the leader of a session. Its mark is one below that of the program before.
func (c *children) start(path string, argv []string, attr *syscall.ProcAttr) (pid int, mark uint64, end <-chan death, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mark > 0 && setMark(c.mark-1) == nil {
		c.mark--
	}
	pid, err = syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, 0, nil, err
	}
	ended := make(chan death, 1)
	c.waiting[pid] = ended
	if c.mark > 0 {
		c.orphans[c.mark] = &spent{}
	}
	return pid, c.mark, ended, nil
}

// forget returns what the orphans of a mark used, and counts them no longer.
func (c *children) forget(mark uint64) spent {
	c.mu.Lock()
	defer c.mu.Unlock()
	used := c.orphans[mark]
	if used == nil {
		return spent{}
	}
	delete(c.orphans, mark)
	return *used
}

// signal reaches a leader that was not waited for yet: its pid is nobody else's.
func (c *children) signal(pid int, s syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting[pid] == nil {
		return nil
	}
	return syscall.Kill(pid, s)
}

// left reports whether there is any child: mostly a program leaves none behind.
func (c *children) left() bool {
	return unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil) == nil
}

// lowestMark is the smallest that any program was given; 0: there are none.
func (c *children) lowestMark() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mark
}

func (c *children) dead() spent {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

// reap takes the children that are dead now.
func (c *children) reap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		pid := nextDead()
		if pid == 0 {
			return
		}
		// Asked while it still has a name in /proc.
		mark := markOf(pid)
		var used spent
		used.read, used.write = processIO(pid)
		var status unix.WaitStatus
		var usage unix.Rusage
		if p, err := unix.Wait4(pid, &status, unix.WNOHANG, &usage); err != nil || p != pid {
			continue
		}
		used.cpu = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
		used.peak = uint64(max(usage.Maxrss, 0)) << 10 //nolint:gosec // not negative
		c.used.add(used)
		if ended := c.waiting[pid]; ended != nil {
			delete(c.waiting, pid)
			ended <- death{status: syscall.WaitStatus(status), used: used}
		} else if o := c.orphans[mark]; o != nil {
			o.add(used)
		}
	}
}

// nextDead is a child that has ended and was not waited for; 0: there is none.
func nextDead() int {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0
		}
		// si_pid: behind three numbers and what aligns the union that follows.
		const at = 16
		return int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), at)))
	}
}

// The mark of a program is the most bytes that a file of its may have, a number that no file system has room for: every process
// inherits it, and a process without privileges can make it smaller, never larger. So none can take on the mark of a program that
// was started before; one that takes it off shows it.
const (
	largestMark = 1 << 62
	fewestMarks = 1 << 40
)

// firstMark is where marks begin: at what is allowed to the agent itself.
func firstMark() uint64 {
	var had unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_FSIZE, &had) != nil || had.Max < 2*fewestMarks {
		return 0
	}
	return min(had.Max, largestMark)
}

func setMark(mark uint64) error {
	return unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: mark, Max: mark})
}

// markOf is the mark of a process, also of a dead one; 0 where it cannot be asked.
func markOf(pid int) uint64 {
	var limit unix.Rlimit
	if unix.Prlimit(pid, unix.RLIMIT_FSIZE, nil, &limit) != nil {
		return 0
	}
	return limit.Max
}

// processIO is what a process has read and written through system calls.
func processIO(pid int) (read, written uint64) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		n, _ := strconv.ParseUint(value, 10, 64)
		switch key {
		case "rchar":
			read = n
		case "wchar":
			written = n
		}
	}
	return read, written
}
