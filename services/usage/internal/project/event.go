package project

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

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

// add takes an event into a batch: a row, or a dead letter, or nothing. It tries again until that succeeds; an error is that of
// ctx.
func (p *Projector) add(ctx context.Context, b *batch, m feed.Message) error {
	b.count(m)
	h := m.Head()
	if p.traced {
		b.link(h)
	}
	for attempt := 1; ; attempt++ {
		err := p.row(ctx, b, m, h)
		var bad *unusable
		if errors.As(err, &bad) {
			err = p.bury(ctx, m, bad)
		}
		if err == nil {
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

// row puts the row of an event into a batch where it makes one. *unusable: it never will.
func (p *Projector) row(ctx context.Context, b *batch, m feed.Message, h envelope.Head) error {
	agg, err := subject.ParseEvent(m.Subject)
	if err != nil {
		return &unusable{"its subject is not that of an event", err}
	}
	if agg.Kind != subject.KindExec && agg.Kind != subject.KindSandbox {
		p.metrics.free.Inc()
		return nil
	}
	if h.Type != "" && !types[h.Type] {
		if _, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(h.Type)); err != nil {
			p.metrics.unknown.Inc()
			return nil //nolint:nilerr // a type of a newer program
		}
		p.metrics.free.Inc()
		return nil
	}
	if h.Type == typeCompleted && agg.Kind == subject.KindExec {
		owner, err := p.owners.of(ctx, agg)
		if err != nil {
			return err
		}
		if b.row = (clickhouse.Row{}); p.words.quick(&b.row, m, h, agg, owner) {
			b.rows.Add(&b.row)
			return nil
		}
	}
	e, err := envelope.DecodeHead(m.Subject, m.Seq, h, m.Data)
	if err != nil {
		return &unusable{"it cannot be decoded", err}
	}
	if requested, ok := e.Body.(*eventsv1.SandboxRequested); ok {
		p.owners.put(agg, Owner{Session: requested.GetSessionId(), Org: requested.GetOrgId()})
		p.metrics.free.Inc()
		return nil
	}
	owner, err := p.owners.of(ctx, agg)
	if err != nil {
		return err
	}
	if b.row, err = Map(e, agg, owner); err != nil {
		return err
	}
	b.rows.Add(&b.row)
	return nil
}
