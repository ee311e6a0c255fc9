package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/telemetry"
)

// Why a message is dead.
const (
	reasonPoison   = "poison"
	reasonAttempts = "attempts"
	reasonPanic    = "panic"
)

// bury stores a message as a dead letter and then ends it. Where it cannot be stored it is retried: nothing is lost.
func (r *runner) bury(d *delivery, reason string, cause error) {
	ctx, cancel := context.WithTimeout(telemetry.Extract(context.WithoutCancel(r.ctx), d.Header), ackTimeout)
	defer cancel()
	letter := r.letter(d, reason, cause)
	_, err := r.js.PublishMsg(ctx, letter)
	if errors.Is(err, nats.ErrMaxPayload) {
		// The headers of a dead letter made it too long.
		letter.Header.Set(dlq.HeaderOmitted, fmt.Sprint(len(letter.Data)))
		letter.Data = nil
		_, err = r.js.PublishMsg(ctx, letter)
	}
	if err != nil {
		r.retry(d, fmt.Errorf("store dead letter: %w", err))
		return
	}
	r.cfg.Log.ErrorContext(ctx, "message is dead", append(r.attrs(d), "reason", reason, "error", cause)...)
	r.metrics.dead.WithLabelValues(reason).Inc()
	r.metrics.done("dead")
	r.settle(d, verdict{dead: true, reason: reason})
}

func (r *runner) letter(d *delivery, reason string, cause error) *nats.Msg {
	m := nats.NewMsg(subject.DeadLetter(r.cfg.Service, r.cfg.Consumer, d.Subject))
	m.Data = d.Data
	for k, v := range d.Header {
		// The server's own headers would guard or deduplicate the dead letter instead of the message.
		if !strings.HasPrefix(strings.ToLower(k), "nats-") {
			m.Header[k] = v
		}
	}
	// Only what is safe to show: the text of other errors may hold anything.
	f := fault.From(cause)
	dlq.Info{
		Service: r.cfg.Service, Consumer: r.cfg.Consumer, Reason: reason, Attempts: d.Attempt, Stream: r.cfg.Stream, Seq: d.Seq,
		Subject: d.Subject, MessageID: d.Header.Get(nats.MsgIdHdr), Code: string(f.Code), FaultReason: string(f.Reason),
		Error: f.Message, Stored: d.Time, Died: time.Now(),
	}.Put(m.Header)
	return m
}
