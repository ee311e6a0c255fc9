package eventlog

import (
	"context"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/subject"
)

const (
	lagAttempts = 10
	firstLag    = 5 * time.Millisecond
	maxLag      = 500 * time.Millisecond
)

// LoadUpTo loads a history that has the event at a sequence of the stream, which the caller has seen. A replica that lags answers a Load
// with less, even with nothing: for a decision that is only a conflict more, for a view it would be a wrong past, so it is asked again.
// fault.Unavailable where the event does not come within about 3 s, or is gone.
func LoadUpTo(ctx context.Context, log Log, agg subject.Aggregate, seq uint64) (History, error) {
	wait := firstLag
	for range lagAttempts {
		h, err := log.Load(ctx, agg)
		if err != nil || h.Tail().Seq >= seq {
			return h, err
		}
		if pause.For(ctx, wait) != nil {
			return History{}, Ended(ctx.Err())
		}
		wait = min(2*wait, maxLag)
	}
	return History{}, fault.Newf(fault.Unavailable, fault.ReasonLogUnavailable, "the log does not show event %d of %s yet; try again", seq, agg.Subject()).
		WithRetry(time.Second)
}

// Known is Load for whoever would take an empty history for the truth: that is given only where the leader of the log has none. What is not
// empty may still lack its end.
func Known(ctx context.Context, log Log, agg subject.Aggregate) (History, error) {
	h, err := log.Load(ctx, agg)
	if err != nil || len(h.Events) > 0 {
		return h, err
	}
	return Current(ctx, log, agg)
}

// Current loads all that was recorded before the call. It costs a question to the leader of the log more than Load, and waits for a leader.
func Current(ctx context.Context, log Log, agg subject.Aggregate) (History, error) {
	seq, err := log.LastSeq(ctx, agg)
	if err != nil || seq == 0 {
		return History{Aggregate: agg}, err
	}
	return LoadUpTo(ctx, log, agg, seq)
}

// Last is Current for whoever needs the last event alone, of an aggregate whose last event says all there is: a history of at most that one
// event. Its cost does not grow with the history where the log can tell it apart.
func Last(ctx context.Context, log Log, agg subject.Aggregate) (History, error) {
	if l, ok := log.(interface {
		Last(ctx context.Context, agg subject.Aggregate) (History, error)
	}); ok {
		return l.Last(ctx, agg)
	}
	h, err := Current(ctx, log, agg)
	if n := len(h.Events); n > 1 {
		h.Events = h.Events[n-1:]
	}
	return h, err
}
