package wayout

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

const (
	actor = "exec"
	// places bounds those that one event tells of.
	places = 64
	// lastTime bounds the recording of what a session that ends still had to tell.
	lastTime = 5 * time.Second
)

// pace is how long decisions are gathered before the event behind n others: a second at first, five minutes where a sandbox goes on asking, an hour
// behind 500.
func pace(n int) time.Duration {
	switch {
	case n < 9:
		return time.Second << n
	case n < 500:
		return 5 * time.Minute
	}
	return time.Hour
}

// decision is what is told apart.
type decision struct {
	host    string
	port    uint16
	allowed bool
	reason  string
}

// recorder gathers the decisions of one sandbox and records them.
type recorder struct {
	log    eventlog.Log
	agg    subject.Aggregate
	worker string
	logger *slog.Logger

	// first holds a value while something waits to be recorded.
	first chan struct{}

	mu       sync.Mutex
	since    time.Time
	gathered map[decision]*eventsv1.EgressDecision
	order    []*eventsv1.EgressDecision
	more     struct{ allowed, refused uint64 }
}

func newRecorder(log eventlog.Log, agg subject.Aggregate, worker string, logger *slog.Logger) *recorder {
	return &recorder{log: log, agg: agg, worker: worker, logger: logger, first: make(chan struct{}, 1), gathered: map[decision]*eventsv1.EgressDecision{}}
}

// add notes a decision n times, and bytes of connections that have ended.
func (r *recorder) add(d decision, n, out, in uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.since.IsZero() {
		r.since = time.Now()
		r.first <- struct{}{}
	}
	e := r.gathered[d]
	switch {
	case e == nil && len(r.order) >= places && d.allowed:
		r.more.allowed += n
		return
	case e == nil && len(r.order) >= places:
		r.more.refused += n
		return
	case e == nil:
		e = &eventsv1.EgressDecision{Host: d.host, Port: uint32(d.port), Allowed: d.allowed, Reason: d.reason}
		r.gathered[d] = e
		r.order = append(r.order, e)
	}
	e.Count += n
	e.BytesOut += out
	e.BytesIn += in
}

// take gives what was gathered; nil where nothing was.
func (r *recorder) take() *eventsv1.EgressDecided {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.since.IsZero() {
		return nil
	}
	select {
	case <-r.first:
	default:
	}
	e := &eventsv1.EgressDecided{
		Worker: r.worker, Since: timestamppb.New(r.since), Until: timestamppb.Now(), Decisions: r.order, MoreAllowed: r.more.allowed, MoreRefused: r.more.refused,
	}
	r.since, r.order, r.gathered = time.Time{}, nil, map[decision]*eventsv1.EgressDecision{}
	r.more.allowed, r.more.refused = 0, 0
	return e
}

// run records until ctx ends, and then what is left.
func (r *recorder) run(ctx context.Context) {
	n := r.recorded(ctx)
	for ctx.Err() == nil {
		select {
		case <-r.first:
			_ = pause.For(ctx, pace(n))
		case <-ctx.Done():
		}
		if e := r.take(); e != nil {
			n = max(n, r.append(ctx, e))
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTime)
	defer cancel()
	if e := r.take(); e != nil {
		r.append(last, e)
	}
}

// recorded is how many events there are already. Where the log does not say it the first ones come too often.
func (r *recorder) recorded(ctx context.Context) int {
	h, err := r.log.Load(ctx, r.agg)
	if err != nil {
		r.logger.Warn("the decisions about a sandbox cannot be read", "sandbox", r.agg.ID, "error", err)
	}
	return len(h.Events)
}

// append records an event, however long that takes while ctx goes on and some seconds behind it, and gives how many there are then.
func (r *recorder) append(ctx context.Context, e *eventsv1.EgressDecided) int {
	events := sandbox.Events(sandbox.CommandMeta{ID: ids.New(), Actor: actor, Time: time.Now(), Tenant: r.agg.Tenant}, e)
	once := func(ctx context.Context) (int, error) {
		h, err := eventlog.Execute(ctx, r.log, r.agg, func(eventlog.History) ([]envelope.Event, error) { return events, nil })
		return len(h.Events), err
	}
	for {
		n, err := once(ctx)
		if err == nil {
			return n
		}
		if ctx.Err() != nil {
			break
		}
		r.logger.Warn("decisions about connections are not recorded yet", "sandbox", r.agg.ID, "error", err)
		_ = pause.For(ctx, time.Second)
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTime)
	defer cancel()
	n, err := once(last)
	if err != nil {
		r.logger.Error("decisions about connections are lost", "sandbox", r.agg.ID, "decisions", len(e.GetDecisions()), "error", err)
	}
	return n
}
