package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/cursor"
	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// errOvertaken: another process has stored progress since.
var errOvertaken = errors.New("another process sends to this webhook")

// resume reads how far the endpoint is. One that is new begins where its first event says.
func (r *runner) resume(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	now, err := cursor.BoundsOf(ctx, r.m.js)
	if err != nil {
		return err
	}
	p := r.point.Load()
	begin := progress{Log: now.Log, After: p.After}
	e, err := r.m.kv.Get(ctx, topology.CheckpointWebhook(p.ID))
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		r.p = begin
	case err != nil:
		return fmt.Errorf("read how far a webhook is: %w", err)
	default:
		r.revision = e.Revision()
		if json.Unmarshal(e.Value(), &r.p) != nil || r.p.Log != now.Log {
			r.m.log.WarnContext(ctx, "a webhook begins anew: how far it was is not known of this log", "webhook", p.ID)
			r.p = begin
		}
	}
	// A log that has lost its end gives the same sequences again.
	if r.p.After > now.Last {
		r.p.After, r.p.Done, r.p.Attempts = now.Last, nil, nil
	}
	if now.Holds(cursor.Cursor{Seq: r.p.After}) != nil && r.p.After > 0 {
		r.m.log.ErrorContext(ctx, "events that a webhook was not sent are no longer kept", "webhook", p.ID, "after", r.p.After, "first", now.First)
	}
	r.window = windowOf(r.p)
	return nil
}

// save stores how far it is; errOvertaken where another process did since.
func (r *runner) save(ctx context.Context) error {
	if !r.dirty {
		return nil
	}
	r.window.store(&r.p)
	data, err := json.Marshal(r.p)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var revision uint64
	key := topology.CheckpointWebhook(r.point.Load().ID)
	if r.revision == 0 {
		revision, err = r.m.kv.Create(ctx, key, data)
	} else {
		revision, err = r.m.kv.Update(ctx, key, data, r.revision)
	}
	r.saved = time.Now()
	switch {
	case errors.Is(err, jetstream.ErrKeyExists) || wrongSequence(err):
		return errOvertaken
	case err != nil:
		// What is delivered again because of it has the same id.
		r.m.log.WarnContext(ctx, "how far a webhook is cannot be stored, trying again", "webhook", r.point.Load().ID, "error", err)
		return nil
	}
	r.revision, r.dirty = revision, false
	return nil
}

func wrongSequence(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence
}

// redrives sends what an operator gives back, once. It has lost its place in the order of its aggregate.
func (r *runner) redrives(ctx context.Context) (func(), error) {
	return dlq.Answer(ctx, r.m.nc, topology.ConsumerWebhook(r.point.Load().ID), r.m.log, func(ctx context.Context, seq uint64) error {
		s, err := r.m.js.Stream(ctx, topology.StreamEvents)
		if err != nil {
			return fmt.Errorf("open the stream of events: %w", err)
		}
		m, err := s.GetMsg(ctx, seq)
		if err != nil {
			return fmt.Errorf("read event %d: %w", seq, err)
		}
		e, err := envelope.Decode(m.Subject, m.Sequence, m.Header, m.Data)
		if err != nil {
			return dlq.Undecodable("an event", err)
		}
		// Whoever may ask for a redrive names any sequence: what is another tenant's is not sent for that.
		if agg, err := subject.ParseEvent(m.Subject); err != nil || !r.point.Load().Wants(agg, e.Type) {
			return fault.New(fault.PermissionDenied, fault.ReasonTenantMismatch, "that event is not one of this webhook's")
		}
		return r.m.sender.send(ctx, *r.point.Load(), e).err
	})
}
