package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// bury stores a message as a dead letter and then ends it. Where it cannot be stored it is retried: nothing is lost.
func (r *runner) bury(d *delivery, reason string, cause error) {
	ctx, cancel := context.WithTimeout(telemetry.Extract(context.WithoutCancel(r.ctx), d.Header), ackTimeout)
	defer cancel()
	err := dlq.Store(ctx, r.js, dlq.Info{
		Service: r.cfg.Service, Consumer: r.cfg.Consumer, Reason: reason, Attempts: d.Attempt, Stream: r.cfg.Stream, Seq: d.Seq,
		Subject: d.Subject, Stored: d.Time, Died: time.Now(),
	}.Why(cause), d.Header, d.Data)
	if err != nil {
		r.retry(d, err)
		return
	}
	r.cfg.Log.ErrorContext(ctx, "message is dead", append(r.attrs(d), "reason", reason, "error", cause)...)
	r.metrics.dead.WithLabelValues(reason).Inc()
	r.metrics.done("dead")
	r.settle(d, verdict{dead: true, reason: reason})
}

// redrives handles the events that operators give back to the consumer. Commands come by the consumer itself. Like one that was
// retried, a redriven event has lost its place in the order of its key.
func (r *runner) redrives() (stop func(), err error) {
	if r.cfg.Stream != topology.StreamEvents {
		return func() {}, nil
	}
	return dlq.Answer(r.work, r.js.Conn(), r.cfg.Consumer, r.cfg.Log, func(ctx context.Context, seq uint64) error {
		s, err := r.js.Stream(ctx, r.cfg.Stream)
		if err != nil {
			return fmt.Errorf("open stream %s: %w", r.cfg.Stream, err)
		}
		m, err := s.GetMsg(ctx, seq)
		if err != nil {
			return fmt.Errorf("read message %d: %w", seq, err)
		}
		return r.handle(telemetry.Extract(ctx, m.Header), Message{
			Subject: m.Subject, Data: m.Data, Header: asDelivered(m), Seq: seq, Attempt: 1, Time: m.Time,
		})
	})
}

// asDelivered are the headers that a consumer delivers: without those that a direct get adds.
func asDelivered(m *jetstream.RawStreamMsg) nats.Header {
	h := nats.Header{}
	for k, v := range m.Header {
		switch k {
		case jetstream.StreamHeader, jetstream.SequenceHeader, jetstream.TimeStampHeaer, jetstream.SubjectHeader, jetstream.LastSequenceHeader:
		default:
			h[k] = v
		}
	}
	return h
}
