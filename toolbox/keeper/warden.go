package keeper

import (
	"io/fs"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/toolbox/wire"
)

// warden holds a sandbox to its limits of space and memory where the kernel does not: a workspace that is a plain directory, a
// sandbox without a cgroup. It looks again and again while commands run, and ends them all when a limit is passed; so a limit
// can be passed by what is written or allocated between two looks.
type warden struct {
	dir      string
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
	// lookEvery is the least time between two looks; a look at many files takes longer, and at most a tenth of the time.
	lookEvery = 200 * time.Millisecond
	lookShare = 9
	// uploadSlack is what a directory entry and a partly used block may add to a written file.
	fileSlack = 8 << 10
)

// watch looks until gone closes; busy says whether any command runs.
func (w *warden) watch(gone <-chan struct{}, busy func() bool) {
	for {
		began := time.Now()
		if busy() {
			w.look()
		}
		select {
		case <-gone:
			return
		case <-time.After(max(lookEvery, lookShare*time.Since(began))):
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
	used := usedBytes(w.dir)
	w.mu.Lock()
	w.used = used
	w.allowed = max(w.limit, min(w.allowed, used))
	over := used > w.allowed
	if over {
		w.allowed = used
	}
	w.mu.Unlock()
	if over {
		w.kill("the workspace is over its size", false)
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
		w.used = usedBytes(w.dir)
	}
	if w.used+uint64(bytes)+fileSlack > w.limit {
		return wire.NewError("resource_exhausted", "disk_full", "the workspace is full")
	}
	w.used += uint64(bytes) + fileSlack
	return nil
}

// usedBytes is the disk space of everything below a directory; a file with two names counts twice.
func usedBytes(dir string) uint64 {
	var sum uint64
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // what is gone or closed has no more to add
		}
		var st unix.Stat_t
		if unix.Lstat(path, &st) == nil {
			sum += uint64(st.Blocks) * 512 //nolint:gosec // not negative
		}
		return nil
	})
	return sum
}

// newWarden is nil where the kernel enforces every limit.
func (k *Keeper) newWarden() *warden {
	w := &warden{dir: k.box.workspace, measures: func() uint64 { return k.meter.gauge.stats().MemoryBytes }, kill: k.overLimit}
	if k.spec.Rootless {
		w.limit = k.spec.WorkspaceBytes
	}
	if !k.box.group.Real() {
		w.memory = k.spec.MemoryBytes
	}
	if w.limit == 0 && w.memory == 0 {
		return nil
	}
	go w.watch(k.box.gone, func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.running > 0
	})
	return w
}

// overLimit ends every command, and what they left behind.
func (k *Keeper) overLimit(message string, oom bool) {
	k.log.Warn("commands ended", "cause", message)
	if oom {
		k.meter.gauge.killed()
	}
	k.mu.Lock()
	for _, p := range k.execs {
		p.mu.Lock()
		p.over = message
		p.mu.Unlock()
	}
	k.mu.Unlock()
	if err := k.box.link.killAll(syscall.SIGKILL); err != nil {
		k.log.Error("commands not ended", "error", err)
	}
}
