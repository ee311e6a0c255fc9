package keeper

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	"github.com/sandtrail/sandtrail/toolbox/cgroup"
)

// sampleEvery is how often memory is read while programs run.
const sampleEvery = 250 * time.Millisecond

// The methods of measuring. Shared: execs overlapped, what the sandbox used meanwhile was split evenly among those running,
// so that their sum is never more than the total; the peak is the sandbox's.
const (
	methodAlone  = "cgroup"
	methodShared = "cgroup_shared"
)

// counters are what the sandbox has used so far, seen from the host.
type counters struct {
	cpu         time.Duration
	read, write float64
}

// account is the part of one exec.
type account struct {
	used   counters
	peak   uint64
	sum    float64
	count  uint64
	shared bool
}

// meter measures a sandbox by its cgroup and by the reads and writes of its sentry, and splits that among execs.
type meter struct {
	group  *cgroup.Group
	sentry int
	// piped are bytes between us and programs, which the sentry's own counters have as reads and writes too.
	pipedIn, pipedOut atomic.Uint64

	mu    sync.Mutex
	last  counters
	open  map[*account]struct{}
	total account
	stop  chan struct{}
}

func newMeter(group *cgroup.Group, sentry int) *meter {
	m := &meter{group: group, sentry: sentry, open: map[*account]struct{}{}}
	m.last = m.read(group.Stats())
	m.total.peak = group.Stats().MemoryPeak
	return m
}

// read takes the counters; those of a sentry that has ended stay as they were.
func (m *meter) read(s cgroup.Stats) counters {
	c := m.last
	c.cpu = max(c.cpu, s.CPU)
	if r, w, ok := processIO(m.sentry); ok {
		in, out := float64(m.pipedIn.Load()), float64(m.pipedOut.Load())
		c.read, c.write = max(c.read, r-in), max(c.write, w-out)
	}
	return c
}

// processIO is what a process has read and written through system calls, page cache included.
func processIO(pid int) (read, written float64, ok bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0, 0, false
	}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		n, _ := strconv.ParseFloat(value, 64)
		switch key {
		case "rchar":
			read, ok = n, true
		case "wchar":
			written = n
		}
	}
	return read, written, ok
}

// settle gives each open account its part of what was used since the last time.
func (m *meter) settle() cgroup.Stats {
	s := m.group.Stats()
	now := m.read(s)
	if n := len(m.open); n > 0 {
		for a := range m.open {
			a.used.cpu += (now.cpu - m.last.cpu) / time.Duration(n)
			a.used.read += (now.read - m.last.read) / float64(n)
			a.used.write += (now.write - m.last.write) / float64(n)
		}
	}
	m.last = now
	m.total.peak = max(m.total.peak, s.MemoryPeak, s.MemoryBytes)
	return s
}

func (m *meter) sample() {
	s := m.settle()
	for a := range m.open {
		a.peak = max(a.peak, s.MemoryBytes)
		a.sum += float64(s.MemoryBytes)
		a.count++
	}
	m.total.sum += float64(s.MemoryBytes)
	m.total.count++
}

// begin opens an account.
func (m *meter) begin() *account {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settle()
	a := &account{}
	if len(m.open) == 0 {
		// A peak belongs to one exec only if it starts with it.
		a.shared = !m.group.ResetPeak()
		m.stop = make(chan struct{})
		go m.follow(m.stop)
	} else {
		a.shared = true
		for other := range m.open {
			other.shared = true
		}
	}
	m.open[a] = struct{}{}
	m.sample()
	return a
}

func (m *meter) follow(stop <-chan struct{}) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			m.mu.Lock()
			m.sample()
			m.mu.Unlock()
		}
	}
}

// end closes an account and says what its exec used and by which method.
func (m *meter) end(a *account) (*commonv1.UsageMetrics, string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sample()
	if _, open := m.open[a]; open {
		delete(m.open, a)
		if len(m.open) == 0 {
			close(m.stop)
		}
	}
	method := methodShared
	if !a.shared {
		method = methodAlone
		a.peak = max(a.peak, m.group.Stats().MemoryPeak)
	}
	return a.metrics(), method
}

func (a *account) metrics() *commonv1.UsageMetrics {
	u := &commonv1.UsageMetrics{
		CpuMs: uint64(a.used.cpu.Milliseconds()), MemoryPeakBytes: a.peak,
		DiskReadBytes: uint64(max(a.used.read, 0)), DiskWriteBytes: uint64(max(a.used.write, 0)),
	}
	if a.count > 0 {
		u.MemoryAvgBytes = uint64(a.sum / float64(a.count))
	}
	return u
}

// usage is what the whole sandbox has used since its start.
func (m *meter) usage() (*commonv1.UsageMetrics, cgroup.Stats) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.settle()
	total := m.total
	total.used = m.last
	if total.count == 0 {
		total.sum, total.count = float64(s.MemoryBytes), 1
	}
	return total.metrics(), s
}

func (m *meter) oomKills() uint64 { return m.group.Stats().OOMKills }
