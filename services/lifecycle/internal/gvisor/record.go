package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/pool"
)

const (
	recordFile = "sandbox.json"
	// groupFile says where the cgroup lies, also for a driver that runs in another one. It is there before the keeper is.
	groupFile = "group.json"
	// keeperGroup is the keeper's own note of it: it may have made none.
	keeperGroup = "cgroup.json"
	logFile     = "keeper.log"
)

// record is what the driver must know of a sandbox after a restart. It holds no secret.
type record struct {
	Tenant      string    `json:"tenant"`
	ImageDigest string    `json:"image_digest"`
	CreatedAt   time.Time `json:"created_at"`
	// Warm is the id that it had as a warm sandbox, and still has on the host; empty for one that never was. Class is what it was kept for.
	Warm  string      `json:"warm,omitempty"`
	Class *pool.Class `json:"class,omitempty"`
	// Bound: it is the sandbox whose directory it lies in, whole. CPUBefore is what it had used when it became that.
	Bound     bool          `json:"bound,omitempty"`
	CPUBefore time.Duration `json:"cpu_before,omitempty"`
}

func readRecord(dir string) (record, error) {
	var r record
	data, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(data, &r)
}

func writeRecord(dir string, r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, recordFile)
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return os.Rename(path+".new", path)
}

// idLock is held by at most one call for a sandbox in this process.
type idLock struct {
	ch      chan struct{}
	waiters int
}

// lock keeps calls for one sandbox apart: in this process by a channel, and from another process on the same state directory by
// a lock on a file, which the kernel gives back when a process dies. It gives up when ctx ends.
func (d *Driver) lock(ctx context.Context, id string) (func(), error) {
	d.mu.Lock()
	l, ok := d.locks[id]
	if !ok {
		l = &idLock{ch: make(chan struct{}, 1)}
		d.locks[id] = l
	}
	l.waiters++
	d.mu.Unlock()
	leave := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if l.waiters--; l.waiters == 0 {
			delete(d.locks, id)
		}
	}
	select {
	case l.ch <- struct{}{}:
	case <-ctx.Done():
		leave()
		return nil, busy(ctx.Err())
	}
	path := filepath.Join(d.o.StateDir, "locks", id)
	file, err := lockFile(ctx, path)
	if err != nil {
		<-l.ch
		leave()
		return nil, err
	}
	return func() {
		// Removed while it is held: whoever waits for it sees that the name is gone and makes another.
		_ = os.Remove(path)
		_ = file.Close()
		<-l.ch
		leave()
	}, nil
}

func lockFile(ctx context.Context, path string) (*os.File, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, runtimeFault("the worker's state directory cannot be written", err)
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && names(path, f) {
			return f, nil
		}
		_ = f.Close()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, busy(errors.Join(ctx.Err(), err))
		}
	}
}

// names reports whether the path still names the open file.
func names(path string, f *os.File) bool {
	at, err := os.Stat(path)
	if err != nil {
		return false
	}
	info, err := f.Stat()
	return err == nil && os.SameFile(at, info)
}

func busy(err error) error {
	return fault.New(fault.Unavailable, fault.ReasonWorkerUnavailable, "another operation on this sandbox is still under way").WithRetry(time.Second).Because(err)
}
