package worker

import (
	"context"
	"time"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/fault"
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
	// Only what is safe to show: the text of other errors may hold anything.
	f := fault.From(cause)
	err := dlq.Store(ctx, r.js, dlq.Info{
		Service: r.cfg.Service, Consumer: r.cfg.Consumer, Reason: reason, Attempts: d.Attempt, Stream: r.cfg.Stream, Seq: d.Seq,
		Subject: d.Subject, Code: string(f.Code), FaultReason: string(f.Reason), Error: f.Message, Stored: d.Time, Died: time.Now(),
	}, d.Header, d.Data)
	if err != nil {
		r.retry(d, err)
		return
	}
	r.cfg.Log.ErrorContext(ctx, "message is dead", append(r.attrs(d), "reason", reason, "error", cause)...)
	r.metrics.dead.WithLabelValues(reason).Inc()
	r.metrics.done("dead")
	r.settle(d, verdict{dead: true, reason: reason})
}
