package keeper

import (
	"time"

	"golang.org/x/sys/unix"
)

// clocks adds up the CPU time of all processes below this one, by the kernel's clock of each. What a process used between the
// last look at it and its end is missed.
type clocks struct {
	total time.Duration
	last  map[int]time.Duration
}

// read looks at all of them and gives the total so far.
func (c *clocks) read() time.Duration {
	pids, err := descendants()
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
