package natsserver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// serverSyncs is how often the server flushes by itself unless it is told otherwise.
	serverSyncs = 2 * time.Minute
	// flushesAtOnce bounds the files that are flushed at once. A journal takes several in one commit.
	flushesAtOnce = 4
	// unsettled is how long a file's times may stay the same while it is written to: they follow the kernel's clock tick.
	unsettled = 50 * time.Millisecond
)

// flusher brings the server's messages to the disk through descriptors of its own. The server's own flush holds a block's lock while
// the disk works, and each append to that block waits for it (nats-server 2.15.3, syncBlocks); the kernel lets others write meanwhile.
type flusher struct {
	dir   string
	every time.Duration
	// flushed is how each file stood when it was last flushed.
	flushed map[string]stamp
	failed  atomic.Pointer[error]
	stop    chan struct{}
	done    sync.WaitGroup
}

// stamp tells a file that was written to from one that was not.
type stamp struct {
	size    int64
	changed time.Time
}

func newFlusher(dir string, every time.Duration) *flusher {
	f := &flusher{dir: dir, every: every, flushed: map[string]stamp{}, stop: make(chan struct{})}
	f.done.Go(f.run)
	return f
}

func (f *flusher) run() {
	tick := time.NewTicker(f.every)
	defer tick.Stop()
	for {
		select {
		case <-f.stop:
			return
		case <-tick.C:
		}
		if _, err := f.flush(); err != nil {
			// What a flush that failed has lost no later one can tell: the kernel forgets it.
			f.failed.Store(&err)
			return
		}
	}
}

func (f *flusher) end() {
	close(f.stop)
	f.done.Wait()
}

// err is why nothing is flushed any more; nil while it is.
func (f *flusher) err() error {
	if err := f.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// flush brings to the disk what was written since the last one, and tells how many files that were.
func (f *flusher) flush() (int, error) {
	present, dirty, err := f.look()
	if err != nil {
		return 0, fmt.Errorf("flush messages: %w", err)
	}
	var g errgroup.Group
	g.SetLimit(flushesAtOnce)
	dirs := map[string]bool{}
	for _, path := range dirty {
		if _, known := f.flushed[path]; !known {
			dirs[filepath.Dir(path)] = true
		}
		g.Go(func() error { return syncFile(path) })
	}
	if err := g.Wait(); err != nil {
		return 0, fmt.Errorf("flush messages: %w", err)
	}
	// A new file is nothing without its name.
	for dir := range dirs {
		if err := syncFile(dir); err != nil {
			return 0, fmt.Errorf("flush messages: %w", err)
		}
	}
	f.flushed = present
	return len(dirty), nil
}

// look finds all files of messages as they stand, and those that are to be flushed.
func (f *flusher) look() (present map[string]stamp, dirty []string, err error) {
	present = make(map[string]stamp, len(f.flushed))
	err = filepath.WalkDir(f.dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case filepath.Ext(path) != blockExt || !d.Type().IsRegular():
			return nil
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		now := stamp{size: info.Size(), changed: info.ModTime()}
		if f.flushed[path] != now {
			dirty = append(dirty, path)
		}
		if time.Since(now.changed) < unsettled {
			// It is flushed once more, with what may be written to it within this tick.
			now.size = -1
		}
		present[path] = now
		return nil
	})
	return present, dirty, err
}

// syncFile flushes a file or directory. The server may have removed it meanwhile.
func syncFile(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
