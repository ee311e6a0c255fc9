package app_test

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/runtime"
)

// host is the world that a driver works on; it outlives the processes that use it.
type host struct {
	mu    sync.Mutex
	boxes map[string]*box
	disks map[string]bool
	// kept are the marks of workspaces that somebody has put off.
	kept map[string]time.Time
	// made counts the sandboxes that were ever begun, by id: more than one at a time would be found here.
	made map[string]int

	// Faults: create runs in the middle of a create, destroy before an end; an error fails it.
	create  func(ctx context.Context, id string) error
	destroy func(id string) error
	// silent sandboxes live and do not answer.
	silent map[string]bool
	// stats runs before usage is told; an error is the answer.
	stats func(ctx context.Context) error
	// roots are what is kept of stopped sandboxes, notes what they were made with.
	roots map[string]string
	notes map[string][]byte
	// snapshot runs in the middle of one; an error fails it. snapshots are those that were made, by name.
	snapshot  func(ctx context.Context) error
	snapshots map[string]runtime.SnapshotSpec
	// told are called with each change that a test tells.
	told []func(id string)
}

type box struct {
	spec   runtime.Spec
	whole  bool
	dead   bool
	reason fault.Reason
	// root is what its programs wrote outside of the workspace.
	root string
}

func newHost() *host {
	return &host{boxes: map[string]*box{}, disks: map[string]bool{}, kept: map[string]time.Time{}, made: map[string]int{}, silent: map[string]bool{}, roots: map[string]string{}, notes: map[string][]byte{}, snapshots: map[string]runtime.SnapshotSpec{}}
}

func (h *host) with(f func(*host)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f(h)
}

// tell says that something of a sandbox has changed.
func (h *host) tell(id string) {
	var told []func(string)
	h.with(func(h *host) { told = slices.Clone(h.told) })
	for _, f := range told {
		f(id)
	}
}

func (h *host) ids() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.boxes))
}

func (h *host) spec(id string) runtime.Spec {
	h.mu.Lock()
	defer h.mu.Unlock()
	if b := h.boxes[id]; b != nil {
		return b.spec
	}
	return runtime.Spec{}
}

// driver is one process's way to the host. at is asked at every step; an error there is the death of the process.
type driver struct {
	host *host
	at   func(step string) error
}

// OnChange implements runtime.Notifier.
func (d *driver) OnChange(f func(id string)) {
	d.host.with(func(h *host) { h.told = append(h.told, f) })
}

func (d *driver) Create(ctx context.Context, s runtime.Spec) (runtime.Created, error) {
	if err := d.at("before create"); err != nil {
		return runtime.Created{}, err
	}
	h := d.host
	var hook func(context.Context, string) error
	var lost error
	h.with(func(h *host) {
		hook = h.create
		root, kept := h.roots[s.ID]
		if s.Resume && !kept && h.boxes[s.ID] == nil {
			lost = fault.New(fault.FailedPrecondition, fault.ReasonSandboxLost, "its root is gone")
			return
		}
		if h.boxes[s.ID] == nil {
			h.boxes[s.ID] = &box{spec: s, root: root}
			h.made[s.ID]++
		}
		h.disks[s.ID] = true
		if len(s.Note) > 0 {
			h.notes[s.ID] = s.Note
		}
	})
	if lost != nil {
		return runtime.Created{}, lost
	}
	if err := d.at("half created"); err != nil {
		return runtime.Created{}, err
	}
	if hook != nil {
		if err := hook(ctx, s.ID); err != nil {
			return runtime.Created{}, err
		}
	}
	h.with(func(h *host) {
		h.boxes[s.ID].whole = true
		delete(h.roots, s.ID)
	})
	if err := d.at("created"); err != nil {
		return runtime.Created{}, err
	}
	return runtime.Created{
		RuntimeID: "st" + s.ID, ImageDigest: "sha256:1", Phases: []runtime.Phase{{Name: "run", Took: 1500 * time.Microsecond}},
		Endpoint: &runtime.Endpoint{Address: "10.0.0.1:7070", Runtime: "sandbox-" + s.ID[:8], UID: "uid-" + s.ID, KeySHA256: []byte{1, 2}},
	}, nil
}

func (d *driver) Destroy(_ context.Context, id string) (runtime.Usage, error) {
	if err := d.at("before destroy"); err != nil {
		return runtime.Usage{}, err
	}
	var used runtime.Usage
	var err error
	d.host.with(func(h *host) {
		if h.destroy != nil {
			if err = h.destroy(id); err != nil {
				return
			}
		}
		if h.boxes[id] != nil {
			used.CPUMillis = 42
		}
		delete(h.boxes, id)
		delete(h.roots, id)
		delete(h.notes, id)
	})
	if err != nil {
		return runtime.Usage{}, err
	}
	return used, d.at("destroyed")
}

// Stop implements runtime.Stopper.
func (d *driver) Stop(_ context.Context, id string) (runtime.Usage, error) {
	if err := d.at("before stop"); err != nil {
		return runtime.Usage{}, err
	}
	var err error
	d.host.with(func(h *host) {
		b := h.boxes[id]
		_, kept := h.roots[id]
		switch {
		case b != nil && b.whole && !b.dead:
			h.roots[id] = b.root
		case !kept:
			err = fault.New(fault.FailedPrecondition, fault.ReasonSandboxLost, "it ended before its root was kept")
		}
	})
	if err := errors.Join(err, d.at("half stopped")); err != nil {
		return runtime.Usage{}, err
	}
	d.host.with(func(h *host) { delete(h.boxes, id) })
	return runtime.Usage{CPUMillis: 42}, d.at("stopped")
}

// Snapshot implements runtime.Snapshotter.
func (d *driver) Snapshot(ctx context.Context, s runtime.SnapshotSpec) (runtime.Snapshotted, error) {
	if err := d.at("before snapshot"); err != nil {
		return runtime.Snapshotted{}, err
	}
	var hook func(context.Context) error
	d.host.with(func(h *host) { hook = h.snapshot })
	if hook != nil {
		if err := hook(ctx); err != nil {
			return runtime.Snapshotted{}, err
		}
	}
	d.host.with(func(h *host) { h.snapshots[s.Image] = s })
	return runtime.Snapshotted{Digest: "sha256:" + s.Image, Bytes: 10, Files: 2}, d.at("snapshot made")
}

// Note implements runtime.Stopper.
func (d *driver) Note(_ context.Context, id string) (note []byte, err error) {
	d.host.with(func(h *host) { note = h.notes[id] })
	return note, nil
}

func (d *driver) DeleteWorkspace(_ context.Context, id string) error {
	var err error
	d.host.with(func(h *host) {
		if h.boxes[id] != nil {
			err = fault.New(fault.Conflict, fault.ReasonConflict, "it still exists")
			return
		}
		delete(h.disks, id)
	})
	return err
}

// DeleteAfter implements runtime.Dated.
func (d *driver) DeleteAfter(_ context.Context, id string) (after time.Time, err error) {
	d.host.with(func(h *host) { after = h.kept[id] })
	return after, nil
}

func (d *driver) status(id string, b *box) runtime.Status {
	st := runtime.Status{ID: id, Exists: b != nil}
	if b != nil {
		st.Tenant, st.Alive, st.Reason = b.spec.Tenant, b.whole && !b.dead, string(b.reason)
	}
	return st
}

func (d *driver) Inspect(_ context.Context, id string) (runtime.Status, error) {
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	if d.host.silent[id] {
		return runtime.Status{}, fault.New(fault.Unavailable, fault.ReasonToolboxUnavailable, "no answer")
	}
	return d.status(id, d.host.boxes[id]), nil
}

func (d *driver) List(context.Context) ([]runtime.Status, error) {
	if err := d.at("list"); err != nil {
		return nil, err
	}
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	var all []runtime.Status
	for id, b := range d.host.boxes {
		st := d.status(id, b)
		st.Alive = st.Alive && !d.host.silent[id]
		all = append(all, st)
	}
	for id := range d.host.roots {
		if d.host.boxes[id] == nil {
			all = append(all, runtime.Status{ID: id, Tenant: tenant, Exists: true, Stopped: true})
		}
	}
	return all, nil
}

func (d *driver) Workspaces(context.Context) ([]string, error) {
	if err := d.at("walk"); err != nil {
		return nil, err
	}
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	return slices.Collect(maps.Keys(d.host.disks)), nil
}

func (d *driver) Dial(context.Context, string) (net.Conn, error) {
	return nil, errors.New("nobody dials here")
}

func (d *driver) Stats(ctx context.Context, id string) (runtime.Usage, error) {
	var hook func(context.Context) error
	d.host.with(func(h *host) { hook = h.stats })
	if hook != nil {
		if err := hook(ctx); err != nil {
			return runtime.Usage{}, err
		}
	}
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	if d.host.boxes[id] == nil {
		return runtime.Usage{}, fault.New(fault.NotFound, fault.ReasonSandboxNotFound, "gone")
	}
	return runtime.Usage{CPUMillis: 21, MemoryPeakBytes: 1 << 20}, nil
}
