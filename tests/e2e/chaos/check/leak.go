package check

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
)

// sweep is how long a workspace may stay behind its delete-after: gc looks for what is due in turns.
const sweep = 2 * time.Minute

// noLeak: nothing remains of a sandbox that has ended, on its host or in a bucket, but its workspace until its delete-after; and
// that one is there. Of one that is stopped its root and its workspace are there, and nothing that costs more than disk.
func noLeak(w *world) []finding {
	var f findings
	for _, h := range w.Hosts {
		kept, roots := map[string]bool{}, map[string]bool{}
		for _, r := range h.Found {
			switch r.Kind {
			case evidence.Workspace:
				kept[r.Sandbox] = true
			case evidence.Kept:
				roots[r.Sandbox] = r.Detail == evidence.KeptRoot
			}
			w.leaked(&f, r)
		}
		for _, b := range sorted(w.boxes) {
			if b.state.State != sandbox.Stopped || b.state.Worker != h.Worker {
				continue
			}
			if !roots[b.agg.ID] {
				f.add(b.agg.Subject(), "it is stopped, and its root is gone from worker %s", h.Worker)
			}
			if !kept[b.agg.ID] {
				f.add(b.agg.Subject(), "it is stopped, and its workspace is gone from worker %s", h.Worker)
			}
		}
		for _, d := range sorted(w.disks) {
			b := w.boxes[d.agg.ID]
			// One that was never ready may have failed before it had any.
			had := b != nil && !b.state.ReadyAt.IsZero()
			if had && d.state.State == sandbox.Released && d.state.Worker == h.Worker && !kept[d.agg.ID] {
				f.add(d.agg.Subject(), "its workspace was to be kept until %s, and is gone from worker %s", d.state.DeleteAfter, h.Worker)
			}
		}
	}
	for _, bucket := range []string{topology.BucketName, topology.BucketLease} {
		for key := range w.Buckets[bucket] {
			for _, b := range w.boxes {
				if b.state.State == sandbox.Destroyed && strings.Contains(key, b.agg.ID) {
					f.add(b.agg.Subject(), "it is destroyed, and key %s is in bucket %s", key, bucket)
				}
			}
		}
	}
	return f
}

func (w *world) leaked(f *findings, r evidence.Resource) {
	if r.Sandbox == "" {
		if r.Zombie || r.Kind != evidence.Process && r.Kind != evidence.Socket {
			f.add(cmp.Or(r.Name, fmt.Sprintf("process %d", r.PID)), "a %s of no sandbox is there: %s", kindOf(r), r.Detail)
		}
		return
	}
	b := w.boxes[r.Sandbox]
	switch {
	case b == nil:
		f.add("sandbox "+r.Sandbox, "the log does not know it, and a %s is there: %s", kindOf(r), r.Name)
	case r.Kind == evidence.Workspace:
		w.overdue(f, b, r)
	case b.state.Over(), b.state.State == sandbox.Stopped && r.Kind != evidence.Kept && r.Kind != evidence.File:
		f.add(b.agg.Subject(), "it is %s, and a %s is there: %s %s", b.state.State, kindOf(r), r.Name, r.Detail)
	case r.Kind == evidence.Kept && r.Detail == evidence.KeptRoot && b.state.State == sandbox.Ready && w.Taken.Sub(last(b.events).Time) > w.settle:
		f.add(b.agg.Subject(), "it runs since %s, and the root that it was started from is still kept: %s", last(b.events).Time, r.Name)
	case r.Zombie:
		f.add(b.agg.Subject(), "nobody has taken its process %d, which has ended: %s", r.PID, r.Name)
	}
}

func kindOf(r evidence.Resource) string {
	if r.Zombie {
		return "zombie"
	}
	return string(r.Kind)
}

func (w *world) overdue(f *findings, b *box, r evidence.Resource) {
	d := w.disks[b.agg.ID]
	switch {
	case d == nil:
	case d.state.State == sandbox.Deleted:
		f.add(d.agg.Subject(), "its workspace is deleted, and is there: %s", r.Name)
	case w.Taken.Sub(d.state.DeleteAfter) > sweep:
		f.add(d.agg.Subject(), "its workspace was to be kept until %s, and is there at %s: %s", d.state.DeleteAfter, w.Taken, r.Name)
	}
}
