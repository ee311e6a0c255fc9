package cgroup

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// longest file of counters that is read; memory.stat has about 2 KiB.
const longest = 16 << 10

// counters reads the group's files. The zero value opens each one for each reading.
type counters struct {
	mu   sync.Mutex
	keep bool
	open map[string]*os.File
	text []byte
}

// Keep holds the files of counters open from their first reading until Remove: opening one costs several times what reading it
// does, and a keeper reads all at both ends of every program. It takes at most eight descriptors.
func (g *Group) Keep() {
	g.counters.mu.Lock()
	defer g.counters.mu.Unlock()
	g.counters.keep = true
}

func (c *counters) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep = false
	for _, f := range c.open {
		_ = f.Close() // it was only read
	}
	c.open = nil
}

// parse gives fn the present text of a file, which is only good during the call. Without such a file fn is not called.
func (c *counters) parse(dir, name string, fn func([]byte)) {
	if dir == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	path := filepath.Join(dir, name)
	f := c.open[path]
	if f == nil {
		var err error
		if f, err = os.Open(path); err != nil {
			return
		}
		if c.keep {
			if c.open == nil {
				c.open = map[string]*os.File{}
			}
			c.open[path] = f
		} else {
			defer f.Close()
		}
	}
	if c.text == nil {
		c.text = make([]byte, longest)
	}
	// The kernel makes the text anew for each reading from the start, and gives all of it at once: ReadAt would ask twice.
	if n, err := unix.Pread(int(f.Fd()), c.text, 0); n > 0 && err == nil {
		fn(c.text[:n])
	}
}

func (c *counters) number(dir, name string) (n uint64) {
	c.parse(dir, name, func(b []byte) { n = parseUint(b) })
	return n
}

// keyed are the numbers behind keys, each the first word of a line; 0 where there is no such line.
func (c *counters) keyed(dir, name string, keys ...string) []uint64 {
	found := make([]uint64, len(keys))
	c.parse(dir, name, func(b []byte) {
		for line := range bytes.Lines(b) {
			k, v, ok := bytes.Cut(line, []byte(" "))
			for i := range keys {
				if ok && string(k) == keys[i] {
					found[i] = parseUint(v)
				}
			}
		}
	})
	return found
}

func parseUint(b []byte) uint64 {
	n, _ := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return n
}

// Stats reads the counters; what a hierarchy does not have is zero.
func (g *Group) Stats() Stats {
	c := &g.counters
	if g.unified {
		return Stats{
			CPU:         g.CPU(),
			MemoryBytes: c.number(g.v2, "memory.current"),
			MemoryPeak:  c.number(g.v2, "memory.peak"),
			OOMKills:    g.OOMKills(),
		}
	}
	return Stats{
		CPU:         g.CPU(),
		MemoryBytes: c.number(g.v1["memory"], "memory.usage_in_bytes"),
		MemoryPeak:  c.number(g.v1["memory"], "memory.max_usage_in_bytes"),
		OOMKills:    g.OOMKills(),
	}
}

// CPU is that counter alone.
func (g *Group) CPU() time.Duration {
	if g.unified {
		return time.Duration(g.counters.keyed(g.v2, "cpu.stat", "usage_usec")[0]) * time.Microsecond
	}
	return time.Duration(g.counters.number(g.v1["cpuacct"], "cpuacct.usage"))
}

// OOMKills is that counter alone.
func (g *Group) OOMKills() uint64 {
	if g.unified {
		return g.counters.keyed(g.v2, "memory.events", "oom_kill")[0]
	}
	return g.counters.keyed(g.v1["memory"], "memory.oom_control", "oom_kill")[0]
}

// Held is how often the group had used up its CPU time before a period of it was over, and so did not run for the rest, of all
// the periods in which it wanted to run.
func (g *Group) Held() (held, of uint64) {
	dir := g.v1["cpu"]
	if g.unified {
		dir = g.v2
	}
	n := g.counters.keyed(dir, "cpu.stat", "nr_throttled", "nr_periods")
	return n[0], n[1]
}

// FileCache is how much of the memory in use is cache of files, which the kernel takes back when it is needed. Memory of the guest
// is not in it: it is a file too, but one that lives in memory only.
func (g *Group) FileCache() uint64 {
	dir, all, shared := g.v1["memory"], "total_cache", "total_shmem"
	if g.unified {
		dir, all, shared = g.v2, "file", "shmem"
	}
	n := g.counters.keyed(dir, "memory.stat", all, shared)
	return n[0] - min(n[0], n[1])
}
