package project

import (
	"context"
	"time"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/feed"
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

// bury stores the message among the dead letters. Done again it makes the same letter.
func (p *Projector) bury(ctx context.Context, m feed.Message, why *unusable) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if err := dlq.Store(ctx, p.js, dlq.Info{
		Service: service, Consumer: topology.CheckpointUsage, Reason: "poison", Attempts: 1,
		Stream: topology.StreamEvents, Seq: m.Seq, Subject: m.Subject, Code: string(fault.InvalidArgument),
		FaultReason: string(fault.ReasonValidation), Error: why.sentence, Stored: moment(m.Stored), Died: time.Now(),
	}, m.Header(), m.Data); err != nil {
		return err
	}
	p.metrics.dead.Inc()
	p.log.Error("event went to the dead letters", "seq", m.Seq, "subject", m.Subject, "reason", why.sentence)
	return nil
}
