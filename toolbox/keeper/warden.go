package keeper

import (
	"sync"
	"syscall"
	"time"

	"github.com/sandtrail/sandtrail/toolbox/wire"
)

// warden holds a sandbox to its limits of space and memory where the kernel does not: a workspace that is a plain directory, a
// sandbox without a cgroup. It looks again and again while programs run, and ends them all when a limit is passed; so a limit
// can be passed by what is written or allocated between two looks.
type warden struct {
	sentry   int
	space    *space
	limit    uint64
	memory   uint64
	measures func() uint64
	kill     func(message string, oom bool)

	mu   sync.Mutex
	used uint64
	// allowed is the limit, or what lay there when commands were last ended: whoever is over it may still remove files.
	allowed uint64
}

const (
	// lookEvery is the least time between two looks; a look at many files takes longer, and at most a tenth of the time. It is
	// not put off for longer than lookLatest: a program could win time by making many files.
	lookEvery  = 200 * time.Millisecond
	lookShare  = 9
	lookLatest = 2 * time.Second
	// idleWork is CPU time that a sentry without commands does not use, lookIdle how long one is not looked at then.
	idleWork = 500 * time.Microsecond
	lookIdle = 20 * time.Second
	// endWait bounds the wait for commands that were killed.
	endWait = 2 * time.Second
	// uploadSlack is what a directory entry and a partly used block may add to a written file.
	fileSlack = 8 << 10
)

// watch looks until gone closes; busy says whether any command runs. One that has ended may have left processes behind: while
// none runs, a sentry that works is looked at too, and every sandbox from time to time.
func (w *warden) watch(gone <-chan struct{}, busy func() bool) {
	var looked time.Time
	var worked time.Duration
	for {
		began := time.Now()
		since := began.Sub(looked)
		clock, _ := processTime(w.sentry)
		if busy() || since > lookLatest && clock-worked > idleWork || since > lookIdle {
			w.look()
			looked, worked = began, clock
		}
		select {
		case <-gone:
			return
		case <-time.After(min(max(lookEvery, lookShare*time.Since(began)), lookLatest)):
		}
	}
}

func (w *warden) look() {
	if w.memory > 0 && w.measures() > w.memory {
		w.kill("out of memory", true)
	}
	if w.limit == 0 {
		return
	}
	used, err := w.space.used()
	if err != nil {
		w.kill(err.Error(), false)
		return
	}
	w.mu.Lock()
	w.used = used
	w.allowed = max(w.limit, min(w.allowed, used))
	over := used > w.allowed
	if over {
		w.allowed = used
	}
	w.mu.Unlock()
	if !over {
		return
	}
	w.kill("the workspace is over its size", false)
	// What was written until they were gone is nothing that commands after them have done.
	if used, err := w.space.used(); err == nil {
		w.mu.Lock()
		w.used, w.allowed = used, max(w.allowed, used)
		w.mu.Unlock()
	}
}

// admit says whether a file of that size may be written from outside.
func (w *warden) admit(bytes int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.limit == 0 {
		return nil
	}
	// Measured anew where it might not fit: files may have been removed meanwhile.
	if w.used+uint64(bytes)+fileSlack > w.limit {
		used, err := w.space.used()
		if err != nil {
			return wire.NewError("resource_exhausted", "disk_full", err.Error())
		}
		w.used = used
	}
	if w.used+uint64(bytes)+fileSlack > w.limit {
		return wire.NewError("resource_exhausted", "disk_full", "the workspace is full")
	}
	w.used += uint64(bytes) + fileSlack
	return nil
}

// newWarden is nil where the kernel enforces every limit.
func (k *Keeper) newWarden() (*warden, error) {
	w := &warden{sentry: k.box.pid, measures: k.meter.gauge.memory, kill: k.overLimit}
	if k.spec.Rootless && k.spec.WorkspaceBytes > 0 {
		var err error
		if w.space, err = newSpace(k.box.workspace, k.box.pid); err != nil {
			return nil, err
		}
		w.limit = k.spec.WorkspaceBytes
	}
	if !k.box.group.Real() && k.spec.MemoryBytes > 0 {
		w.memory = k.spec.MemoryBytes + sentryBytes
	}
	if w.limit == 0 && w.memory == 0 {
		return nil, nil
	}
	go w.watch(k.box.gone, func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.running > 0
	})
	return w, nil
}

// overLimit ends every command, and what they left behind, and returns when they have ended.
func (k *Keeper) overLimit(message string, oom bool) {
	k.log.Warn("commands ended", "cause", message)
	if oom {
		k.meter.gauge.killed()
	}
	var ending []<-chan struct{}
	k.mu.Lock()
	for _, p := range k.execs {
		p.mu.Lock()
		p.over, p.tooLarge = message, !oom
		p.mu.Unlock()
		ending = append(ending, p.done)
	}
	k.mu.Unlock()
	if err := k.signalAll(syscall.SIGKILL); err != nil {
		k.log.Error("commands not ended", "error", err)
		return
	}
	late := time.After(endWait)
	for _, done := range ending {
		select {
		case <-done:
		case <-late:
			return
		}
	}
}
