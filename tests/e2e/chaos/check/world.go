package check

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

// world is a run with its log replayed.
type world struct {
	journal.History
	evidence.Evidence
	// settle is how long things may disagree.
	settle time.Duration

	// events are those that could be read, in order; unread says why others could not.
	events []envelope.Recorded
	unread findings
	// boxes, runs and disks are the aggregates by their ids.
	boxes map[string]*box
	runs  map[string]*run
	disks map[string]*disk
	// programs by token.
	programs map[string]journal.Program
}

// box is a sandbox as its events tell it.
type box struct {
	agg    subject.Aggregate
	state  sandbox.Sandbox
	events []envelope.Recorded
	// refused says which event does not fit the ones before it.
	refused findings
}

// run is an exec as its events tell it, with what was recorded and seen of it.
type run struct {
	agg     subject.Aggregate
	state   sandbox.Exec
	events  []envelope.Recorded
	refused findings
	// program is what it was built to do; nil where it is none of ours.
	program *journal.Program
	token   string
	out     *evidence.Transcript
	calls   []journal.Call
}

// disk is a workspace as its events tell it.
type disk struct {
	agg     subject.Aggregate
	state   sandbox.Workspace
	refused findings
}

func newWorld(h journal.History, e evidence.Evidence) *world {
	w := &world{
		History: h, Evidence: e, settle: cmp.Or(e.Limits.Settle, evidence.Settle),
		boxes: map[string]*box{}, runs: map[string]*run{}, disks: map[string]*disk{}, programs: map[string]journal.Program{},
	}
	for _, raw := range e.Events {
		r, err := raw.Decode()
		if err == nil && r.Body == nil {
			w.unread.add(raw.Subject, "event %d has the unknown type %s", raw.Seq, r.Type)
			continue
		}
		agg, badSubject := subject.ParseEvent(raw.Subject)
		if err == nil {
			err = badSubject
		}
		if err != nil {
			w.unread.add(raw.Subject, "event %d cannot be read: %v", raw.Seq, err)
			continue
		}
		w.events = append(w.events, r)
		w.replay(agg, r)
	}
	for _, c := range h.Calls {
		if c.Program != nil {
			w.programs[c.Program.Token] = *c.Program
		}
	}
	for i := range e.Transcripts {
		if x, ok := w.runs[e.Transcripts[i].Exec]; ok {
			x.out = &e.Transcripts[i]
		}
	}
	for _, x := range w.runs {
		x.token = journal.TokenOf(x.state.Spec.GetCommand(), x.state.Spec.GetArgs())
		if p, ok := w.programs[x.token]; ok {
			x.program = &p
		}
	}
	for _, c := range h.Calls {
		if x, ok := w.runs[c.Exec]; ok {
			x.calls = append(x.calls, c)
		}
	}
	return w
}

// replay applies one event. One that does not fit is left out, and it is said.
func (w *world) replay(agg subject.Aggregate, r envelope.Recorded) {
	switch agg.Kind {
	case subject.KindSandbox:
		b, ok := w.boxes[agg.ID]
		if !ok {
			b = &box{agg: agg, state: sandbox.Sandbox{ID: agg.ID, Tenant: agg.Tenant}}
			w.boxes[agg.ID] = b
		}
		b.events = append(b.events, r)
		next, err := b.state.Evolve(r)
		if err != nil {
			b.refused.add(r.Subject, "event %d does not follow from those before it: %v", r.Seq, err)
			return
		}
		b.state = next
	case subject.KindExec:
		x, ok := w.runs[agg.ID]
		if !ok {
			x = &run{agg: agg, state: sandbox.Exec{ID: agg.ID, Sandbox: agg.Sandbox, Tenant: agg.Tenant}}
			w.runs[agg.ID] = x
		}
		x.events = append(x.events, r)
		next, err := x.state.Evolve(r)
		if err != nil {
			x.refused.add(r.Subject, "event %d does not follow from those before it: %v", r.Seq, err)
			return
		}
		x.state = next
	case subject.KindWorkspace:
		d, ok := w.disks[agg.ID]
		if !ok {
			d = &disk{agg: agg, state: sandbox.Workspace{ID: agg.ID, Tenant: agg.Tenant}}
			w.disks[agg.ID] = d
		}
		next, err := d.state.Evolve(r)
		if err != nil {
			d.refused.add(r.Subject, "event %d does not follow from those before it: %v", r.Seq, err)
			return
		}
		d.state = next
	}
}

// sorted are the values of a map in the order of its keys, so that a run is always judged in the same words.
func sorted[V any](m map[string]V) []V {
	var out []V
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[k])
	}
	return out
}

// count is how many events of a type an aggregate has.
func count[Body any](events []envelope.Recorded) int {
	n := 0
	for _, e := range events {
		if _, ok := e.Body.(Body); ok {
			n++
		}
	}
	return n
}

// last is an aggregate's last event.
func last(events []envelope.Recorded) envelope.Recorded { return events[len(events)-1] }
