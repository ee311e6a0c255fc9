package project

import (
	"context"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/feed"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

// types are the events that are decoded. Of the others the type is enough.
var types = func() map[string]bool {
	names := map[string]bool{}
	for _, m := range append([]proto.Message{&eventsv1.SandboxRequested{}}, costing...) {
		names[string(m.ProtoReflect().Descriptor().FullName())] = true
	}
	return names
}()

// add takes an event into a batch: a row, or a dead letter, or nothing. It tries again until that succeeds, because an event that is
// passed over is never billed; only one that can never become a row, or panics dlq.MaxPanics times, is a dead letter. An error is that
// of ctx.
func (p *Projector) add(ctx context.Context, b *batch, m feed.Message) error {
	b.count(m)
	h := m.Head()
	if p.traced {
		b.link(h)
	}
	panics := 0
	for attempt := 1; ; attempt++ {
		made, err := p.row(ctx, &b.row, m, h)
		if reason, cause := dead(err, &panics); reason != "" {
			err = p.bury(ctx, m, reason, attempt, cause)
		}
		if err == nil {
			if made {
				b.rows.Add(&b.row)
			}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.metrics.retries.Inc()
		p.log.Warn("cannot project an event, trying again", "seq", m.Seq, "attempt", attempt, "error", err)
		pause(ctx, attempt)
	}
}

// row makes the row of an event; false where it makes none. *unusable: it never will. A panic is an error.
func (p *Projector) row(ctx context.Context, row *clickhouse.Row, m feed.Message, h envelope.Head) (made bool, err error) {
	defer func() {
		if caught := recover(); caught != nil {
			made, err = false, dlq.Caught(caught)
		}
	}()
	agg, err := subject.ParseEvent(m.Subject)
	if err != nil {
		if subject.Future(m.Subject) {
			p.metrics.unknown.Inc()
			return false, nil
		}
		return false, &unusable{"its subject is not that of an event", err}
	}
	if agg.Kind != subject.KindExec && agg.Kind != subject.KindSandbox {
		p.metrics.free.Inc()
		return false, nil
	}
	if h.Type != "" && !types[h.Type] {
		if _, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(h.Type)); err != nil {
			p.metrics.unknown.Inc()
			return false, nil //nolint:nilerr // a type of a newer program
		}
		p.metrics.free.Inc()
		return false, nil
	}
	if h.Type == typeCompleted && agg.Kind == subject.KindExec {
		owner, err := p.owners.of(ctx, agg)
		if err != nil {
			return false, err
		}
		if *row = (clickhouse.Row{}); p.words.quick(row, m, h, agg, owner) {
			return true, nil
		}
	}
	e, err := envelope.DecodeHead(m.Subject, m.Seq, h, m.Data)
	if err != nil {
		return false, &unusable{undecodable, err}
	}
	if requested, ok := e.Body.(*eventsv1.SandboxRequested); ok {
		p.owners.put(agg, Owner{Session: requested.GetSessionId(), Org: requested.GetOrgId()})
		p.metrics.free.Inc()
		return false, nil
	}
	owner, err := p.owners.of(ctx, agg)
	if err != nil {
		return false, err
	}
	if *row, err = Map(e, agg, owner); err != nil {
		return false, err
	}
	return true, nil
}
