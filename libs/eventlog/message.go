package eventlog

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/propagation"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// Bounds of an append. What is over is refused with fault.ResourceExhausted and ReasonTooLarge.
const (
	// MaxEvents bounds the events of one append or batch.
	MaxEvents = 1000
	// MaxEventSize bounds an event with its headers, in bytes.
	MaxEventSize = 256 << 10
	// headroom is for headers that are added behind Messages: the expectation and the batch.
	headroom = 1 << 10
)

// Messages checks events and encodes them, chained behind after, as every implementation of Log must: the tenant and the
// subject are the aggregate's, the time is now where it is empty, and the trace context is that of ctx where an event has none.
func Messages(ctx context.Context, agg subject.Aggregate, after Tail, events []envelope.Event) ([]*nats.Msg, error) {
	if err := agg.Validate(); err != nil {
		return nil, invalid(err)
	}
	if len(events) > MaxEvents {
		return nil, tooLarge(fmt.Sprintf("%d events are more than the %d of one append", len(events), MaxEvents))
	}
	if (after.Seq == 0) != (len(after.Digest) == 0) || (after.Seq != 0 && len(after.Digest) != sha256.Size) {
		return nil, invalid(fmt.Errorf("tail at %d has a digest of %d bytes", after.Seq, len(after.Digest)))
	}
	trace := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, trace)
	now := time.Now().UTC()
	messages := make([]*nats.Msg, len(events))
	digest := after.Digest
	for i, e := range events {
		if e.Tenant == "" {
			e.Tenant = agg.Tenant
		}
		if e.Tenant != agg.Tenant {
			return nil, invalid(errors.New("an event of one tenant cannot be in another one's history"))
		}
		if e.Body == nil {
			return nil, invalid(errors.New("an event has no body"))
		}
		if e.Time.IsZero() {
			e.Time = now
		}
		if e.Traceparent == "" {
			e.Traceparent, e.Tracestate = trace["traceparent"], trace["tracestate"]
		}
		m, d, err := envelope.Encode(agg.Subject(), e, digest)
		if err != nil {
			return nil, invalid(err)
		}
		if m.Size() > MaxEventSize-headroom {
			return nil, tooLarge(fmt.Sprintf("an event of %d bytes is over the limit of %d", m.Size(), MaxEventSize-headroom))
		}
		messages[i], digest = m, d
	}
	return messages, distinct(messages)
}

func distinct(messages []*nats.Msg) error {
	if len(messages) < 2 {
		return nil
	}
	seen := make(map[string]bool, len(messages))
	for _, m := range messages {
		id := m.Header.Get(envelope.HeaderID)
		if seen[id] {
			return invalid(fmt.Errorf("event id %s is there twice", id))
		}
		seen[id] = true
	}
	return nil
}

// Batch is Messages for every entry of an atomic batch. An aggregate may be there once, and MaxEvents bounds the whole batch.
func Batch(ctx context.Context, entries []Entry) ([][]*nats.Msg, error) {
	var (
		all   = make([][]*nats.Msg, len(entries))
		flat  []*nats.Msg
		known = map[subject.Aggregate]bool{}
	)
	for i, e := range entries {
		if known[e.Aggregate] {
			return nil, invalid(errors.New("an aggregate is twice in one batch"))
		}
		known[e.Aggregate] = true
		if len(e.Events) == 0 {
			return nil, invalid(errors.New("an aggregate is in a batch without an event"))
		}
		m, err := Messages(ctx, e.Aggregate, e.After, e.Events)
		if err != nil {
			return nil, err
		}
		all[i] = m
		flat = append(flat, m...)
	}
	if len(flat) > MaxEvents {
		return nil, tooLarge(fmt.Sprintf("%d events are more than the %d of one batch", len(flat), MaxEvents))
	}
	return all, distinct(flat)
}

func invalid(err error) error {
	return fault.New(fault.InvalidArgument, fault.ReasonValidation, "the events cannot be appended").Because(err)
}

func tooLarge(message string) error {
	return fault.New(fault.ResourceExhausted, fault.ReasonTooLarge, message)
}
