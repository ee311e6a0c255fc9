// Package memlog is an event log in memory: for tests of what is built on one, and as the plain model of what the real one
// does. It passes the same contract suite.
package memlog

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// Log is an event log in memory; it grows without bound.
type Log struct {
	mu      sync.Mutex
	seq     uint64
	streams map[string][]envelope.Recorded
	ids     map[string]bool
}

// New is an empty log.
func New() *Log {
	return &Log{streams: map[string][]envelope.Recorded{}, ids: map[string]bool{}}
}

var _ eventlog.Log = (*Log)(nil)

// Append implements eventlog.Log.
func (l *Log) Append(
	ctx context.Context, agg subject.Aggregate, after eventlog.Tail, events ...envelope.Event,
) ([]envelope.Recorded, error) {
	if len(events) == 0 {
		return nil, nil
	}
	return l.AppendBatch(ctx, eventlog.Entry{Aggregate: agg, After: after, Events: events})
}

// AppendBatch implements eventlog.Log.
func (l *Log) AppendBatch(ctx context.Context, entries ...eventlog.Entry) ([]envelope.Recorded, error) {
	batch, err := eventlog.Batch(ctx, entries)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, eventlog.Ended(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if before, ok := l.repeated(entries, batch); ok {
		return before, nil
	}
	for i, e := range entries {
		have := l.streams[e.Aggregate.Subject()]
		if (eventlog.History{Events: have}).Tail().Seq != e.After.Seq {
			return nil, eventlog.ErrConflict
		}
		for _, m := range batch[i] {
			if id := m.Header.Get(envelope.HeaderID); l.ids[id] {
				return nil, fault.New(fault.Internal, fault.ReasonInternal, "an event id was used twice").
					Because(fmt.Errorf("event %s is elsewhere in the log", id))
			}
		}
	}
	return l.store(batch)
}

// repeated finds the events of an earlier append of the same ids behind the same tails.
func (l *Log) repeated(entries []eventlog.Entry, batch [][]*nats.Msg) ([]envelope.Recorded, bool) {
	var all []envelope.Recorded
	for i, e := range entries {
		have := l.streams[e.Aggregate.Subject()]
		for len(have) > 0 && have[0].Seq <= e.After.Seq {
			have = have[1:]
		}
		if len(have) < len(batch[i]) {
			return nil, false
		}
		for j, m := range batch[i] {
			if have[j].ID != m.Header.Get(envelope.HeaderID) {
				return nil, false
			}
			found := have[j]
			found.Found = true
			all = append(all, found)
		}
	}
	return all, true
}

func (l *Log) store(batch [][]*nats.Msg) ([]envelope.Recorded, error) {
	var all []envelope.Recorded
	seq := l.seq
	for _, messages := range batch {
		for _, m := range messages {
			seq++
			r, err := envelope.Decode(m.Subject, seq, m.Header, m.Data)
			if err != nil {
				return nil, fault.From(err)
			}
			all = append(all, r)
		}
	}
	l.seq = seq
	for _, r := range all {
		l.streams[r.Subject] = append(l.streams[r.Subject], r)
		l.ids[r.ID] = true
	}
	return all, nil
}

// Load implements eventlog.Log.
func (l *Log) Load(ctx context.Context, agg subject.Aggregate) (eventlog.History, error) {
	if err := agg.Validate(); err != nil {
		return eventlog.History{}, fault.New(fault.InvalidArgument, fault.ReasonValidation, err.Error())
	}
	if err := ctx.Err(); err != nil {
		return eventlog.History{}, eventlog.Ended(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return eventlog.History{Aggregate: agg, Events: append([]envelope.Recorded(nil), l.streams[agg.Subject()]...)}, nil
}

// LastSeq implements eventlog.Log.
func (l *Log) LastSeq(ctx context.Context, agg subject.Aggregate) (uint64, error) {
	h, err := l.Load(ctx, agg)
	return h.Tail().Seq, err
}

// Find gives the aggregate whose subject matches a filter such as subject.AnyTenantSandbox(id), as eventlog/jslog does.
func (l *Log) Find(ctx context.Context, filter string) (subject.Aggregate, error) {
	if err := ctx.Err(); err != nil {
		return subject.Aggregate{}, eventlog.Ended(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
	for s := range l.streams {
		if matches(filter, s) {
			found = append(found, s)
		}
	}
	return eventlog.Found(filter, found)
}

func matches(filter, s string) bool {
	f, t := strings.Split(filter, "."), strings.Split(s, ".")
	for i, want := range f {
		if want == ">" {
			return len(t) > i
		}
		if i >= len(t) || (want != "*" && want != t[i]) {
			return false
		}
	}
	return len(f) == len(t)
}
