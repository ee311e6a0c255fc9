package linear

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// Recorder keeps a history of calls. Any number of logs may record into it at the same time; it grows with each call.
type Recorder struct {
	start time.Time

	mu    sync.Mutex
	calls []Call
}

// NewRecorder keeps an empty history whose time begins now.
func NewRecorder() *Recorder { return &Recorder{start: time.Now()} }

// Calls are all that were recorded so far.
func (r *Recorder) Calls() []Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

// Count tells how many appends were acknowledged, and how many were refused because somebody was faster.
func (r *Recorder) Count() (done, conflicts int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.calls {
		switch {
		case c.Done:
			done++
		case !c.Load && !c.Unknown:
			conflicts++
		}
	}
	return done, conflicts
}

func (r *Recorder) add(c Call, began time.Time) {
	c.Began, c.Ended = began.Sub(r.start).Nanoseconds(), time.Since(r.start).Nanoseconds()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, c)
}

// Loads says whether loads are part of the history. Those of a cluster are not: a replica that lags may answer them.
type Loads bool

// Log records what one client does with a log. It takes appends of one event behind a history that was loaded through it; all
// others are refused, because the model knows no more.
func (r *Recorder) Log(client int, log eventlog.Log, loads Loads) eventlog.Log {
	return &recorded{Log: log, rec: r, client: client, loads: loads, tails: map[string]string{}}
}

type recorded struct {
	eventlog.Log
	rec    *Recorder
	client int
	loads  Loads

	mu sync.Mutex
	// tails are the ids of the last events that were loaded, by digest; it grows with what is loaded.
	tails map[string]string
}

func (l *recorded) Load(ctx context.Context, agg subject.Aggregate) (eventlog.History, error) {
	began := time.Now()
	h, err := l.Log.Load(ctx, agg)
	if err != nil {
		return h, err // it said that it does not know
	}
	c := Call{Client: l.client, Aggregate: agg.Subject(), Load: true}
	for _, e := range h.Events {
		c.Events = append(c.Events, e.ID)
	}
	if l.loads {
		l.rec.add(c, began)
	}
	if n := len(h.Events); n > 0 {
		l.mu.Lock()
		l.tails[string(h.Events[n-1].Digest)] = h.Events[n-1].ID
		l.mu.Unlock()
	}
	return h, nil
}

func (l *recorded) Append(ctx context.Context, agg subject.Aggregate, after eventlog.Tail, events ...envelope.Event) ([]envelope.Recorded, error) {
	l.mu.Lock()
	behind, loaded := l.tails[string(after.Digest)]
	l.mu.Unlock()
	if len(events) != 1 || (after.Seq != 0 && !loaded) {
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "only an append of one event behind a loaded history is recorded")
	}
	c := Call{Client: l.client, Aggregate: agg.Subject(), After: behind, ID: events[0].ID}
	began := time.Now()
	stored, err := l.Log.Append(ctx, agg, after, events...)
	c.Done, c.Unknown = err == nil, err != nil && !errors.Is(err, eventlog.ErrConflict)
	l.rec.add(c, began)
	return stored, err
}

func (l *recorded) AppendBatch(context.Context, ...eventlog.Entry) ([]envelope.Recorded, error) {
	return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "batches are not recorded")
}
