package eventlog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/subject"
)

const (
	// MaxAttempts bounds how often Execute decides when others are faster.
	MaxAttempts = 8
	maxPause    = 100 * time.Millisecond
)

// Execute loads an aggregate, decides and appends. When somebody else was faster the whole decision is taken again on the new
// history, at most MaxAttempts times, then it gives fault.Conflict with ReasonConflict. It returns the history with what was
// appended. No events decided: nothing is appended. Events whose ids are in the history already were recorded by an earlier
// run of the same command: they are not again. Whoever goes by the history sees what came behind them as well. An error of decide is returned as it is.
//
// An append proves that the history which led to it was whole. A refusal, and a decision to do nothing, are believed only when the leader of
// the log knows no more than what they were decided on: a replica that lags shows a past in which a sandbox does not exist yet.
func Execute(
	ctx context.Context, log Log, agg subject.Aggregate, decide func(History) ([]envelope.Event, error),
) (History, error) {
	var upTo uint64
	asked := false
	for attempt := range MaxAttempts {
		h, err := LoadUpTo(ctx, log, agg, upTo)
		if err != nil {
			return History{}, err
		}
		events, err := decide(h)
		if (err != nil || len(events) == 0) && !asked {
			last, lerr := log.LastSeq(ctx, agg)
			if lerr != nil {
				return h, lerr
			}
			asked = true
			if last > h.Tail().Seq {
				upTo = last
				continue
			}
		}
		if err != nil {
			return h, err
		}
		done, err := recorded(h, events)
		if err == nil && done {
			return Current(ctx, log, agg)
		}
		if err != nil {
			return h, err
		}
		appended, err := log.Append(ctx, agg, h.Tail(), events...)
		if err == nil && appended[0].Found {
			// A replica that lags had not shown them, or an answer was lost.
			return Current(ctx, log, agg)
		}
		if err == nil {
			h.Events = append(h.Events, appended...)
			return h, nil
		}
		if !errors.Is(err, ErrConflict) {
			return h, err
		}
		// Something stands behind what was loaded.
		upTo, asked = max(upTo, h.Tail().Seq+1), false
		if err := backOff(ctx, attempt); err != nil {
			return h, err
		}
	}
	return History{}, fault.New(fault.Conflict, fault.ReasonConflict,
		"too many changes at the same time; try again").Because(ErrConflict).WithRetry(maxPause)
}

// recorded reports whether there is nothing to append: no events, or events that an earlier run recorded.
func recorded(h History, events []envelope.Event) (bool, error) {
	if len(events) == 0 {
		return true, nil
	}
	types := make(map[string]string, len(h.Events))
	for _, e := range h.Events {
		types[e.ID] = e.Type
	}
	for _, e := range events {
		was, ok := types[e.ID]
		if !ok {
			continue
		}
		if now := typeOf(e); was != now {
			return false, fault.New(fault.Internal, fault.ReasonInternal, "an event id was used twice").
				Because(fmt.Errorf("event %s is recorded as %s, cannot be %s too", e.ID, was, now))
		}
		return true, nil
	}
	return false, nil
}

func typeOf(e envelope.Event) string {
	if e.Type == "" && e.Body != nil {
		return string(e.Body.ProtoReflect().Descriptor().FullName())
	}
	return e.Type
}

// backOff waits a moment that grows with each attempt; its length is random, so that rivals do not meet again.
func backOff(ctx context.Context, attempt int) error {
	limit := min(maxPause, time.Millisecond<<(attempt+1))
	if pause.For(ctx, rand.N(limit)+1) != nil { // spreads load, guards nothing
		return Ended(ctx.Err())
	}
	return nil
}

// Ended is the fault of a context that ended before the log answered. What was being appended may be recorded or not; the same
// append may be repeated.
func Ended(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fault.New(fault.DeadlineExceeded, fault.ReasonTimeout, "the event log did not answer in time").Because(err)
	}
	return fault.New(fault.Cancelled, fault.ReasonCancelled, "the call was cancelled").Because(err)
}
