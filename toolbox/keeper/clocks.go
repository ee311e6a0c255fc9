package keeper

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/toolbox/cgroup"
)

// clocks adds up the CPU time of all processes below this one, by the kernel's clock of each. What a process used between the
// last look at it and its end is missed.
type clocks struct {
	total time.Duration
	// last is what each process below had used. others are processes that are not below, remembered until forget: a host with
	// many sandboxes has thousands, and each costs a file to read.
	last   map[int]time.Duration
	others map[int]bool
	forget time.Time
}

// othersFor bounds how long a new process that was given the number of another one's can be overlooked.
const othersFor = time.Second

// read looks at all of them and gives the total so far.
func (c *clocks) read() time.Duration {
	pids, err := c.below()
	if err != nil {
		return c.total
	}
	now := make(map[int]time.Duration, len(pids))
	for _, pid := range pids {
		used, ok := processTime(pid)
		if !ok {
			continue
		}
		now[pid] = used
		before := c.last[pid]
		if before > used {
			// Another process by the same number.
			before = 0
		}
		c.total += used - before
	}
	c.last = now
	return c.total
}

// below are the processes below this one; orphans of theirs have this one as parent.
func (c *clocks) below() ([]int, error) {
	if time.Now().After(c.forget) {
		c.others, c.forget = map[int]bool{}, time.Now().Add(othersFor)
	}
	all, err := allProcesses()
	if err != nil {
		return nil, err
	}
	ours := map[int]bool{os.Getpid(): true}
	var pids []int
	unknown := map[int]int{}
	for _, pid := range all {
		if !c.others[pid] && !ours[pid] {
			unknown[pid] = cgroup.Parent(pid)
		}
	}
	// Children may have lower numbers than their parents.
	for more := true; more; {
		more = false
		for pid, up := range unknown {
			if ours[up] {
				ours[pid], more = true, true
				pids = append(pids, pid)
				delete(unknown, pid)
			}
		}
	}
	for pid := range unknown {
		c.others[pid] = true
	}
	return pids, nil
}

// allProcesses of this host.
func allProcesses() ([]int, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// processTime is the CPU time of a process, threads that have ended included.
func processTime(pid int) (time.Duration, bool) {
	// The number of a process's clock: its pid's complement above three bits that say "scheduled time of the whole process".
	const scheduled = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &t); err != nil { //nolint:gosec // pids are below 2^22
		return 0, false
	}
	return time.Duration(t.Nano()), true
}
