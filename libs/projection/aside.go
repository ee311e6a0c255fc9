package projection

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/feed"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// hopelessAttempts is how often an event is applied although it is known that it must fail again: what a view remembers may have been
// wrong, and a failed attempt makes it forget.
const hopelessAttempts = 3

// failing counts the failures of one event.
type failing struct {
	seq              uint64
	attempts, panics int
}

// apply puts an event into the view; a panic is an error.
func (r *Runner) apply(ctx context.Context, e envelope.Recorded) (err error) {
	ctx = telemetry.WithCorrelation(ctx, e.Correlation)
	if e.Traceparent != "" {
		ctx = telemetry.Continue(ctx, e.Meta)
	}
	r.applying.Lock()
	defer r.applying.Unlock()
	defer func() {
		if p := recover(); p != nil {
			err = dlq.Caught(p)
		}
	}()
	return r.p.Apply(ctx, e)
}

// failed decides about an event that could not be applied: nil where it was set aside, otherwise the error.
func (r *Runner) failed(ctx context.Context, m feed.Message, err error) error {
	if ctx.Err() != nil {
		// What fails while everything ends says nothing about the event.
		return err
	}
	f := &r.failing
	if f.seq != m.Seq {
		*f = failing{seq: m.Seq}
	}
	f.attempts++
	var crashed *dlq.PanicError
	if errors.As(err, &crashed) {
		f.panics++
	}
	switch {
	case f.panics >= dlq.MaxPanics:
		return r.setAside(ctx, m, dlq.ReasonPanic, f.attempts, err)
	case f.attempts >= hopelessAttempts && dlq.Hopeless(err):
		return r.setAside(ctx, m, dlq.ReasonPoison, f.attempts, err)
	}
	return err
}

// setAside makes a dead letter of an event that the view then goes without. Done again it makes the same letter. An error: it could
// not be stored, and the event is not to be passed over.
func (r *Runner) setAside(ctx context.Context, m feed.Message, reason string, attempts int, cause error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := dlq.Store(ctx, r.js, dlq.Info{
		Service: r.service, Consumer: r.key(), Reason: reason, Attempts: attempts, Stream: topology.StreamEvents, Seq: m.Seq,
		Subject: m.Subject, Stored: time.Unix(0, m.Stored), Died: time.Now(),
	}.Why(cause), m.Header(), m.Data)
	if err != nil {
		return err
	}
	r.metrics.dead[reason].Inc()
	r.log.ErrorContext(ctx, "an event was set aside: the view goes on without it", "seq", m.Seq, "subject", m.Subject, "reason", reason, "error", cause)
	return nil
}

// redrive applies one event of the log now, beside the session.
func (r *Runner) redrive(ctx context.Context, seq uint64) error {
	stream, err := r.stream(ctx)
	if err != nil {
		return err
	}
	m, err := stream.GetMsg(ctx, seq)
	if err != nil {
		return fmt.Errorf("read event %d: %w", seq, err)
	}
	e, err := envelope.Decode(m.Subject, m.Sequence, m.Header, m.Data)
	switch {
	case err != nil:
		return dlq.Undecodable("an event", err)
	case e.Body == nil:
		return dlq.UnknownKind()
	}
	if err := r.apply(ctx, e); err != nil {
		return fmt.Errorf("apply event %d: %w", seq, err)
	}
	r.metrics.applied.Inc()
	return nil
}
