package jslog

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
)

// appending is one append on its way, over several attempts.
type appending struct {
	log     *Log
	entries []eventlog.Entry
	batch   [][]*nats.Msg // by entry
	flat    []*nats.Msg
	// unsure is set once an attempt may have been stored without our knowing.
	unsure bool
}

// run publishes until the outcome is known. A refusal says little by itself: a single server answers a repeated message with
// "wrong last sequence" and a cluster with "duplicate", and either may speak of an earlier attempt of ours. So what counts
// is what stands in the log behind the expected tail.
func (a *appending) run(ctx context.Context) ([]envelope.Recorded, error) {
	// The first attempt is nearly always the only one: it does without the timer of the whole.
	got, err := a.publish(ctx)
	if err == nil && !got.duplicate {
		return a.stored(got.seq)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, budget, errBudget)
	defer cancel()
	var last error
	for attempt := range a.log.attempts {
		if attempt > 0 {
			got, err = a.publish(ctx)
		}
		if err == nil && !got.duplicate {
			return a.stored(got.seq)
		}
		last = err
		why := classify(err)
		if final := refused(why, err); final != nil && !a.unsure {
			return nil, final
		}
		a.unsure = a.unsure || why == whyUnknown
		if ctx.Err() != nil {
			break
		}
		recorded, where, rerr := a.outcome(ctx, why)
		switch {
		case rerr != nil:
			last = errors.Join(last, rerr)
		case where == whereStored:
			for i := range recorded {
				recorded[i].Found = true
			}
			return recorded, nil
		case where == whereOther:
			return nil, eventlog.ErrConflict
		case why == whyDuplicate:
			return nil, reused(a.flat)
		default:
			if final := refused(why, err); final != nil {
				return nil, final
			}
		}
		if a.log.pause(ctx, attempt) != nil {
			break
		}
	}
	return nil, unavailable(ctx, last)
}

func (a *appending) publish(ctx context.Context) (ack, error) {
	ctx, cancel := context.WithTimeout(ctx, a.log.timeout)
	defer cancel()
	return a.log.publisher.publish(ctx, a.flat)
}

// stored makes the events of a batch whose last message has the sequence: a batch is stored in one piece.
func (a *appending) stored(last uint64) ([]envelope.Recorded, error) {
	seq := last - uint64(len(a.flat))
	events := make([]envelope.Recorded, 0, len(a.flat))
	for i, messages := range a.batch {
		for j, m := range messages {
			seq++
			r, err := envelope.Stored(m, seq, a.entries[i].Events[j])
			if err != nil {
				return nil, fault.New(fault.Internal, fault.ReasonInternal, "an event in the log cannot be read").Because(err)
			}
			events = append(events, r)
		}
	}
	return events, nil
}

// refused is the fault of a refusal that another attempt would not change, nil of any other answer.
func refused(w why, err error) error {
	switch w {
	case whyFull:
		return fault.New(fault.ResourceExhausted, fault.ReasonLogFull,
			"the event log is full; an operator must give it more room").Because(err)
	case whyTooLarge:
		return fault.New(fault.ResourceExhausted, fault.ReasonTooLarge, "an event is too large for the log").Because(err)
	case whyRefused:
		return fault.New(fault.Internal, fault.ReasonInternal, "the event log refused an event").Because(err)
	default:
		return nil
	}
}

// reused is the fault when the server knows an id of ours and our events are not where they should be.
func reused(flat []*nats.Msg) error {
	return fault.New(fault.Internal, fault.ReasonInternal, "an event id was used twice").
		Because(fmt.Errorf("event %s, or one with it, is elsewhere in the log", flat[0].Header.Get(envelope.HeaderID)))
}

// where is what stands behind the expected tail of every aggregate.
type where int

const (
	whereNothing where = iota // nothing, or the replica that answered lags
	whereStored               // our events
	whereOther                // somebody else's
)

// outcome reads what became of our events. A replica that lags shows less than there is; where the server's answer says that
// there is something, or is final, the leader is asked.
func (a *appending) outcome(ctx context.Context, w why) ([]envelope.Recorded, where, error) {
	events, found, err := a.look(ctx, a.log.page, false)
	if err == nil && found == whereNothing && w != whyUnknown && w != whyAgain {
		return a.look(ctx, a.log.leaderPage, true)
	}
	return events, found, err
}

type pageFunc func(ctx context.Context, subject string, from uint64, n int) ([]stored, int, error)

// look reads what stands behind the expected tails. What is recorded there under our ids is ours, whoever stands behind it.
// certain says that what is not read is not there.
func (a *appending) look(ctx context.Context, page pageFunc, certain bool) ([]envelope.Recorded, where, error) {
	var (
		all   []envelope.Recorded
		worst = whereStored
	)
	for i, e := range a.entries {
		messages, _, err := page(ctx, e.Aggregate.Subject(), max(e.After.Seq, 1), len(a.batch[i])+1)
		if err != nil {
			return nil, whereNothing, err
		}
		mine, w := compare(messages, e.After.Seq, a.batch[i], certain)
		if w == whereOther {
			return nil, whereOther, nil
		}
		worst = min(worst, w)
		if w == whereStored {
			if all, err = decode(all, mine); err != nil {
				return nil, whereNothing, err
			}
		}
	}
	return all, worst, nil
}

// compare says what stands behind a tail, given the messages from the tail on, and which of them are ours.
func compare(messages []stored, tail uint64, ours []*nats.Msg, certain bool) ([]stored, where) {
	switch {
	case tail == 0:
	case len(messages) == 0 && certain:
		return nil, whereOther // such a tail never was
	case len(messages) == 0:
		return nil, whereNothing
	case messages[0].Seq != tail:
		return nil, whereOther
	default:
		messages = messages[1:]
	}
	for i, m := range ours {
		if i == len(messages) {
			return nil, whereNothing // none, or the beginning of ours: the rest is on its way to this replica
		}
		if messages[i].Header.Get(envelope.HeaderID) != m.Header.Get(envelope.HeaderID) {
			return nil, whereOther
		}
	}
	return messages[:len(ours)], whereStored
}
