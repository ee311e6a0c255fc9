package keeper

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	"github.com/sandtrail/sandtrail/toolbox/cgroup"
)

// sampleEvery is how often memory is read while programs run.
const sampleEvery = 250 * time.Millisecond

// The methods of measuring. Shared: execs overlapped. What the sandbox used meanwhile was split among those running, so that
// their sum is never more than the total: CPU by what the sentry says of their processes, reads and writes evenly; the peak is
// the sandbox's.
const (
	methodAlone  = "cgroup"
	methodShared = "cgroup_shared"
	// Where the host gives us no cgroup: CPU by the clocks of the sandbox's processes, memory of guest and sentry.
	methodProcess       = "process"
	methodProcessShared = "process_shared"
)

// counters are what the sandbox has used so far, seen from the host.
type counters struct {
	cpu         time.Duration
	read, write float64
}

// account is the part of one exec.
type account struct {
	// tag is the group of the exec's processes; seen their time by the sentry's last word, idle that it had not grown then.
	tag  uint32
	seen time.Duration
	idle bool
	used counters
	peak uint64
	// cached is the least file cache seen while it was open: what earlier execs left there, which its peak must not count.
	cached uint64
	sum    float64
	count  uint64
	shared bool
}

// meter measures a sandbox by its cgroup and by the reads and writes of its sentry, and splits that among execs.
type meter struct {
	gauge *gauge
	// io is the sentry's count of its reads and writes, held open; nil where it cannot be read.
	io *os.File
	// times asks the sentry for the time of the execs' processes.
	times func(context.Context, []uint32) (map[uint32]time.Duration, error)
	// piped are bytes between us and programs, and answered those of the sentry's answers to us: the sentry's own counters have them
	// as reads and writes too.
	pipedIn, pipedOut atomic.Uint64
	answered          func() uint64

	// looks is called with each sample, and how many there were.
	looks func(nth int)

	// asking is held while the sentry is asked, which is not under mu; asked is when it was last.
	asking sync.Mutex
	asked  time.Time

	mu   sync.Mutex
	last counters
	// before is what the sandbox had used when it became somebody's.
	before counters
	open   map[*account]struct{}
	total  account
	stop   chan struct{}
}

func newMeter(box *sandbox) *meter {
	m := &meter{gauge: &gauge{box: box}, times: box.control.Times, answered: box.control.Written, open: map[*account]struct{}{}}
	m.io, _ = os.Open(fmt.Sprintf("/proc/%d/io", box.pid))
	s := m.gauge.stats()
	m.last, m.total.peak = m.read(s), s.MemoryPeak
	return m
}

// read takes the counters; those of a sentry that has ended stay as they were.
func (m *meter) read(s cgroup.Stats) counters {
	c := m.last
	c.cpu = max(c.cpu, s.CPU)
	if r, w, ok := processIO(m.io); ok {
		in, out := float64(m.pipedIn.Load()), float64(m.pipedOut.Load()+m.answered())
		c.read, c.write = max(c.read, r-in), max(c.write, w-out)
	}
	return c
}

// processIO is what a process has read and written through system calls, page cache included, by its file in /proc. That of a process
// that has ended cannot be read.
func processIO(f *os.File) (read, written float64, ok bool) {
	if f == nil {
		return 0, 0, false
	}
	text := make([]byte, 512)
	n, err := unix.Pread(int(f.Fd()), text, 0)
	if err != nil {
		return 0, 0, false
	}
	for line := range bytes.Lines(text[:n]) {
		key, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(": "))
		n, _ := strconv.ParseFloat(string(value), 64)
		switch string(key) {
		case "rchar":
			read, ok = n, true
		case "wchar":
			written = n
		}
	}
	return read, written, ok
}

// settle gives each open account its part of what was used since the last time. times may be nil; ending is the account that
// is about to close, or nil.
func (m *meter) settle(times map[uint32]time.Duration, ending *account) cgroup.Stats {
	s := m.gauge.stats()
	now := m.read(s)
	if n := len(m.open); n > 0 {
		split(now.cpu-m.last.cpu, m.open, times, ending)
		for a := range m.open {
			a.used.read += (now.read - m.last.read) / float64(n)
			a.used.write += (now.write - m.last.write) / float64(n)
		}
	}
	m.last = now
	m.total.peak = max(m.total.peak, s.MemoryPeak, s.MemoryBytes)
	return s
}

// observe takes what was just read as the memory of every open account.
func (m *meter) observe(s cgroup.Stats) {
	cached := m.gauge.fileCache()
	inUse := float64(s.MemoryBytes - min(s.MemoryBytes, cached))
	for a := range m.open {
		a.peak = max(a.peak, s.MemoryBytes)
		a.cached = min(a.cached, cached)
		a.sum += inUse
		a.count++
	}
	m.total.sum += inUse
	m.total.count++
}

// begin opens an account for the exec whose processes have the tag.
func (m *meter) begin(tag uint32) *account {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := &account{tag: tag, cached: math.MaxUint64}
	s := m.settle(nil, nil)
	switch len(m.open) {
	case 0:
		// A peak belongs to one exec only if it starts with it.
		a.shared = !m.gauge.resetPeak()
		m.stop = make(chan struct{})
		go m.follow(m.stop)
	case 1:
		// Until now the other had all; how much of it its processes know of themselves is where the split starts.
		go m.ask(nil, true)
		fallthrough
	default:
		a.shared = true
		for other := range m.open {
			other.shared = true
		}
	}
	m.open[a] = struct{}{}
	m.observe(s)
	return a
}

func (m *meter) follow(stop <-chan struct{}) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for nth := 1; ; nth++ {
		select {
		case <-stop:
			return
		case <-tick.C:
			m.ask(nil, false)
			m.looks(nth)
		}
	}
}

const (
	// askTimeout bounds a question to the sentry, askEvery is the least time between two: they cost the sandbox CPU.
	askTimeout = 250 * time.Millisecond
	askEvery   = 25 * time.Millisecond
)

// ask samples, with the sentry's word where execs overlap, and returns what it read. base: only take that word as the point to
// start from.
func (m *meter) ask(ending *account, base bool) (s cgroup.Stats) {
	times := m.question()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !base {
		s = m.settle(times, ending)
		m.observe(s)
		return s
	}
	for a := range m.open {
		a.seen, a.idle = max(a.seen, times[a.tag]), false
	}
	return s
}

// question asks the sentry. Nil: only one exec runs, it was asked just now, or it does not answer.
func (m *meter) question() map[uint32]time.Duration {
	if !m.asking.TryLock() {
		return nil
	}
	defer m.asking.Unlock()
	m.mu.Lock()
	var tags []uint32
	for a := range m.open {
		tags = append(tags, a.tag)
	}
	m.mu.Unlock()
	if len(tags) < 2 || time.Since(m.asked) < askEvery {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	times, err := m.times(ctx, tags)
	m.asked = time.Now()
	if err != nil {
		return nil
	}
	return times
}

// alone is the method of measuring what does not overlap.
func (m *meter) alone() string {
	if m.gauge.box.group.Real() {
		return methodAlone
	}
	return methodProcess
}

// end closes an account and says what its exec used and by which method.
func (m *meter) end(a *account) (*commonv1.UsageMetrics, string) {
	s := m.ask(a, false)
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, open := m.open[a]; open {
		delete(m.open, a)
		if len(m.open) == 0 {
			close(m.stop)
		}
	}
	method := methodShared
	if !m.gauge.box.group.Real() {
		method = methodProcessShared
	}
	if !a.shared {
		method = m.alone()
		a.peak = max(a.peak, s.MemoryPeak)
	}
	return a.metrics(), method
}

func (a *account) metrics() *commonv1.UsageMetrics {
	u := &commonv1.UsageMetrics{
		CpuMs: uint64(a.used.cpu.Milliseconds()), MemoryPeakBytes: a.peak - min(a.peak, a.cached),
		DiskReadBytes: uint64(max(a.used.read, 0)), DiskWriteBytes: uint64(max(a.used.write, 0)),
	}
	if a.count > 0 {
		u.MemoryAvgBytes = uint64(a.sum / float64(a.count))
	}
	return u
}

// rebase counts what the whole sandbox uses from now on.
func (m *meter) rebase() {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.settle(nil, nil)
	m.before = m.last
	m.gauge.resetPeak()
	m.total = account{peak: s.MemoryBytes}
}

// usage is what the whole sandbox has used since it became somebody's.
func (m *meter) usage() (*commonv1.UsageMetrics, cgroup.Stats) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.settle(nil, nil)
	total := m.total
	total.used = counters{cpu: m.last.cpu - m.before.cpu, read: m.last.read - m.before.read, write: m.last.write - m.before.write}
	if total.count == 0 {
		total.sum, total.count = float64(s.MemoryBytes), 1
	}
	return total.metrics(), s
}

func (m *meter) oomKills() uint64 { return m.gauge.oomKills() }
