package project

import (
	"context"
	"time"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/topology"
)

const service = "usage"

// unusable is an event that can never become a row. The sentence is safe to show; what is behind it may quote the event.
type unusable struct {
	sentence string
	cause    error
}

func (u *unusable) Error() string { return u.sentence }

func (u *unusable) Unwrap() error { return u.cause }

// bury stores the message among the dead letters and then ends its delivery. Done again it makes the same letter.
func (p *Projector) bury(ctx context.Context, i *item, why *unusable) error {
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	seq := i.meta.Sequence.Stream
	if err := dlq.Store(ctx, p.js, dlq.Info{
		Service: service, Consumer: topology.ConsumerUsage, Reason: "poison", Attempts: int(i.meta.NumDelivered), //nolint:gosec // a count
		Stream: topology.StreamEvents, Seq: seq, Subject: i.msg.Subject(), Code: string(fault.InvalidArgument),
		FaultReason: string(fault.ReasonValidation), Error: why.sentence, Stored: i.meta.Timestamp, Died: time.Now(),
	}, i.msg.Headers(), i.msg.Data()); err != nil {
		return err
	}
	p.metrics.dead.Inc()
	p.log.Error("event went to the dead letters", "seq", seq, "subject", i.msg.Subject(), "reason", why.sentence)
	if err := i.msg.TermWithReason("unusable event"); err != nil {
		p.log.Warn("cannot end the delivery of a dead letter", "seq", seq, "error", err)
	}
	return nil
}
