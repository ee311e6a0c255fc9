package metering

import (
	"cmp"
	"slices"
	"time"

	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// Key names an hour's quantity of one meter.
type Key struct {
	Tenant, Sandbox, Session string
	Meter                    Meter
	// Hour is its start in Unix milliseconds.
	Hour int64
}

// Windows are quantities by hour, none of them zero.
type Windows map[Key]uint64

// Add takes the hours of a span in.
func (w Windows) Add(tenant, sandbox, session string, s Span) {
	s.hours(func(hour int64, m Meter, quantity uint64) {
		if quantity > 0 {
			w[Key{tenant, sandbox, session, m, hour}] += quantity
		}
	})
}

// Total adds the quantities of each meter of a tenant up.
func (w Windows) Total(tenant string) map[Meter]uint64 {
	all := map[Meter]uint64{}
	for k, v := range w {
		if k.Tenant == tenant {
			all[k.Meter] += v
		}
	}
	return all
}

type box struct{ tenant, id string }

// owner is what the request at a sequence says.
type owner struct {
	Owner
	seq uint64
}

// Ledger takes events in any order, each as often as it comes, and gives quantities. It keeps the readings of sandboxes; of execs
// only their hours. Not for concurrent use.
type Ledger struct {
	seen   map[uint64]uint64
	owners map[box]owner
	boxes  map[box][]Reading
	// execs have the exec's own session in their keys, empty for that of the sandbox.
	execs Windows
}

// NewLedger is an empty one.
func NewLedger() *Ledger {
	return &Ledger{seen: map[uint64]uint64{}, owners: map[box]owner{}, boxes: map[box][]Reading{}, execs: Windows{}}
}

// Add takes an event of a known type. Those that say nothing about usage change nothing.
func (l *Ledger) Add(e envelope.Recorded, agg subject.Aggregate) {
	of := box{agg.Tenant, agg.Sandbox}
	if b, ok := e.Body.(*eventsv1.SandboxRequested); ok && agg.Kind == subject.KindSandbox {
		// The first one counts, as for everybody who reads a sandbox's history from its beginning.
		if known, ok := l.owners[of]; !ok || e.Seq < known.seq {
			l.owners[of] = owner{OwnerOf(b), e.Seq}
		}
		return
	}
	r, ok := Read(e, agg)
	if !ok || l.taken(e.Seq) {
		return
	}
	if r.Kind != Ended {
		l.boxes[of] = append(l.boxes[of], r)
		return
	}
	Exec(r).hours(func(hour int64, m Meter, quantity uint64) {
		if quantity > 0 {
			l.execs[Key{of.tenant, of.id, r.Session, m, hour}] += quantity
		}
	})
}

// taken remembers a sequence and reports whether it was known.
func (l *Ledger) taken(seq uint64) bool {
	bit := uint64(1) << (seq % 64)
	known := l.seen[seq/64]&bit != 0
	l.seen[seq/64] |= bit
	return known
}

// Windows are the quantities as they are known at until, in Unix milliseconds: workspaces that nobody removed are kept up to there.
func (l *Ledger) Windows(until int64) Windows {
	all := make(Windows, len(l.execs))
	for k, v := range l.execs {
		if k.Session == "" {
			k.Session = l.owners[box{k.Tenant, k.Sandbox}].Session
		}
		all[k] += v
	}
	for of, readings := range l.boxes {
		o := l.owners[of].Owner
		add := func(hour int64, m Meter, quantity uint64) {
			if quantity > 0 {
				all[Key{of.tenant, of.id, o.Session, m, hour}] += quantity
			}
		}
		slices.SortFunc(readings, func(a, b Reading) int { return cmp.Compare(a.Seq, b.Seq) })
		for _, s := range Spans(readings, o) {
			s.hours(add)
		}
		if s, ok := Storage(readings, o, until); ok {
			s.hours(add)
		}
	}
	return all
}

// Difference is an hour in which two sets of windows do not agree.
type Difference struct {
	Key
	Want, Have uint64
}

// Compare gives all of them, in the order of tenant, hour, sandbox, session and meter; none where the two are the same.
func Compare(want, have Windows) []Difference {
	var all []Difference
	for k, v := range want {
		if have[k] != v {
			all = append(all, Difference{k, v, have[k]})
		}
	}
	for k, v := range have {
		if _, ok := want[k]; !ok {
			all = append(all, Difference{k, 0, v})
		}
	}
	slices.SortFunc(all, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Hour, b.Hour), cmp.Compare(a.Sandbox, b.Sandbox),
			cmp.Compare(a.Session, b.Session), cmp.Compare(a.Meter, b.Meter))
	})
	return all
}

// Days adds the hours of each day up, under the hour that the day begins with.
func (w Windows) Days() Windows {
	const day = int64(24 * time.Hour / time.Millisecond)
	all := Windows{}
	for k, v := range w {
		k.Hour = k.Hour / day * day
		all[k] += v
	}
	return all
}
