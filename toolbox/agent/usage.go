package agent

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	"github.com/sandtrail/sandtrail/toolbox/task"
)

const (
	// method of measuring: what the guest's own kernel says of processes, told by a process of the guest.
	method = "agent"
	// sampleEvery is how often memory is looked at while programs run.
	sampleEvery = 250 * time.Millisecond
)

// meter measures all programs together. Its figures only grow.
type meter struct {
	children *children
	// limit is the memory that all may use before the largest program is ended; 0: no limit.
	limit uint64

	mu    sync.Mutex
	last  spent
	now   uint64
	sum   float64
	count uint64
	ooms  uint64
	// work wakes watch when a program begins.
	work chan struct{}
}

func newMeter(c *children, limit uint64) *meter {
	return &meter{children: c, limit: limit, work: make(chan struct{}, 1)}
}

// begin makes sure that the memory of a new program is looked at.
func (m *meter) begin() {
	select {
	case m.work <- struct{}{}:
	default:
	}
}

// watch looks while programs run.
func (m *meter) watch(ctx context.Context, a *Agent) {
	for {
		a.mu.Lock()
		busy := a.running > 0
		a.mu.Unlock()
		var again <-chan time.Time
		if busy {
			m.sample(a)
			again = time.After(sampleEvery)
		}
		select {
		case <-ctx.Done():
			return
		case <-m.work:
		case <-again:
		}
	}
}

// sample notes the memory of every program, and ends the largest where all together have too much.
func (m *meter) sample(a *Agent) {
	o, err := a.census()
	if err != nil {
		return
	}
	all := ownMemory()
	for _, c := range o.all {
		all += c.resident
	}
	var largest *program
	var most uint64
	for p, processes := range o.of {
		var sum uint64
		for _, c := range processes {
			sum += c.resident
		}
		p.note(sum)
		if sum > most && p.running() {
			largest, most = p, sum
		}
	}
	m.mu.Lock()
	m.now = all
	m.last.peak = max(m.last.peak, all)
	m.sum, m.count = m.sum+float64(all), m.count+1
	over := m.limit > 0 && all > m.limit && largest != nil
	if over {
		m.ooms++
	}
	m.mu.Unlock()
	if over {
		a.log.Warn("the largest program is ended", "exec", largest.id, "memory", all)
		go a.endTree(largest, task.OOMKilled, 0)
	}
}

// usage is that of the sandbox until now. The second result is the memory in use.
func (m *meter) usage() (*commonv1.UsageMetrics, uint64) {
	// The dead first: one that dies in between counts twice for a moment rather than not at all, and the next look keeps what is more.
	now := m.children.dead()
	memory := ownMemory()
	if all, err := below(); err == nil {
		for _, c := range all {
			if c.dead {
				continue
			}
			read, written := processIO(c.pid)
			now.add(spent{cpu: c.cpu, read: read, write: written})
			memory += c.resident
		}
	}
	var self unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &self) == nil {
		now.cpu += time.Duration(self.Utime.Nano() + self.Stime.Nano())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l := &m.last
	l.cpu, l.read, l.write = max(l.cpu, now.cpu), max(l.read, now.read), max(l.write, now.write)
	l.peak = max(l.peak, memory)
	average := memory
	if m.count > 0 {
		average = uint64(m.sum / float64(m.count))
	}
	return metrics(*l, average), memory
}

func (m *meter) oomKills() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ooms
}

func metrics(s spent, average uint64) *commonv1.UsageMetrics {
	return &commonv1.UsageMetrics{
		CpuMs: uint64(max(s.cpu.Milliseconds(), 0)), MemoryPeakBytes: s.peak, MemoryAvgBytes: average, //nolint:gosec // not negative
		DiskReadBytes: s.read, DiskWriteBytes: s.write,
	}
}

// ownMemory is the agent's own.
func ownMemory() uint64 {
	b, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0
	}
	p, _ := parseStat(b)
	return p.resident
}

// account is what one program used, as far as it is known before its end.
type account struct {
	// pipedOut and pipedIn are bytes between the program and the agent, which its own counters have too.
	pipedOut, pipedIn atomic.Uint64

	mu    sync.Mutex
	peak  uint64
	sum   float64
	count uint64
}

func (c *account) note(resident uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.peak = max(c.peak, resident)
	c.sum, c.count = c.sum+float64(resident), c.count+1
}

// total is what the dead and the living of the program have used.
func (c *account) total(dead spent, living []process) *commonv1.UsageMetrics {
	for _, p := range living {
		if !p.dead {
			read, written := processIO(p.pid)
			dead.add(spent{cpu: p.cpu, read: read, write: written})
		}
	}
	dead.read -= min(dead.read, c.pipedIn.Load())
	dead.write -= min(dead.write, c.pipedOut.Load())
	c.mu.Lock()
	defer c.mu.Unlock()
	dead.peak = max(dead.peak, c.peak)
	average := dead.peak
	if c.count > 0 {
		average = uint64(c.sum / float64(c.count))
	}
	return metrics(dead, average)
}
