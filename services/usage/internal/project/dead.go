package project

import (
	"context"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

const service = "usage"

// unusable is an event that can never become a row.
type unusable struct{ err error }

func (u *unusable) Error() string { return u.err.Error() }

// bury stores the message among the dead letters and then ends its delivery. Done again it stores nothing twice: the id is
// derived from where the event stands in the log.
func (p *Projector) bury(ctx context.Context, m jetstream.Msg, why *unusable) error {
	meta, err := m.Metadata()
	if err != nil {
		return fmt.Errorf("dead letter: %w", err)
	}
	seq := strconv.FormatUint(meta.Sequence.Stream, 10)
	letter := nats.NewMsg(subject.DeadLetter(service, topology.ConsumerUsage, m.Subject()))
	letter.Data = m.Data()
	for k, v := range m.Headers() {
		letter.Header[k] = v
	}
	letter.Header.Set("Sandtrail-Dead-Id", m.Headers().Get(envelope.HeaderID))
	letter.Header.Set("Sandtrail-Dead-Reason", why.Error())
	letter.Header.Set("Sandtrail-Dead-Stream", topology.StreamEvents)
	letter.Header.Set("Sandtrail-Dead-Seq", seq)
	letter.Header.Set(envelope.HeaderID, "dlq-"+topology.ConsumerUsage+"-"+p.incarnation+"-"+seq)
	for _, k := range []string{
		jetstream.ExpectedLastSeqHeader, jetstream.ExpectedLastSubjSeqHeader, jetstream.ExpectedLastMsgIDHeader, jetstream.ExpectedStreamHeader,
		"Nats-Expected-Last-Subject-Sequence-Subject", "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit",
	} {
		letter.Header.Del(k)
	}
	if _, err := p.js.PublishMsg(ctx, letter); err != nil {
		return fmt.Errorf("store dead letter: %w", err)
	}
	p.metrics.dead.Inc()
	p.log.Error("event went to the dead letters", "seq", meta.Sequence.Stream, "subject", m.Subject(), "reason", why.Error())
	if err := m.TermWithReason("unusable event"); err != nil {
		p.log.Warn("cannot end the delivery of a dead letter", "seq", meta.Sequence.Stream, "error", err)
	}
	return nil
}
