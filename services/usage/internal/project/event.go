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
	"github.com/sandtrail/sandtrail/libs/metering"
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
		made, err := p.row(ctx, b, m, h)
		if reason, cause := dead(err, &panics); reason != "" {
			err = p.bury(ctx, m, reason, attempt, cause)
		}
		if err == nil {
			if made > 0 {
				b.rows.Add(&b.row)
			}
			if made > 1 {
				b.rows.Add(&b.reading)
			}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.metrics.retries.Inc()
		p.log.Warn("cannot project an event, trying again", "seq", m.Seq, "attempt", attempt, "error", err)
		backOff(ctx, attempt)
	}
}

// row makes the rows of an event, none, one or two, in b. *unusable: it never will. A panic is an error.
func (p *Projector) row(ctx context.Context, b *batch, m feed.Message, h envelope.Head) (made int, err error) {
	defer func() {
		if caught := recover(); caught != nil {
			made, err = 0, dlq.Caught(caught)
		}
	}()
	agg, err := subject.ParseEvent(m.Subject)
	if err != nil {
		if subject.Future(m.Subject) {
			p.metrics.unknown.Inc()
			return 0, nil
		}
		return 0, &unusable{"its subject is not that of an event", err}
	}
	if agg.Kind != subject.KindExec && agg.Kind != subject.KindSandbox && agg.Kind != subject.KindWorkspace {
		p.metrics.free.Inc()
		return 0, nil
	}
	if h.Type != "" && !types[h.Type] {
		if _, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(h.Type)); err != nil {
			p.metrics.unknown.Inc()
			return 0, nil //nolint:nilerr // a type of a newer program
		}
		p.metrics.free.Inc()
		return 0, nil
	}
	if h.Type == typeCompleted && agg.Kind == subject.KindExec {
		owner, err := p.owners.of(ctx, agg)
		if err != nil {
			return 0, err
		}
		if b.row = (clickhouse.Row{}); p.words.quick(&b.row, m, h, agg, owner) {
			return 1, nil
		}
	}
	e, err := envelope.DecodeHead(m.Subject, m.Seq, h, m.Data)
	if err != nil {
		return 0, &unusable{undecodable, err}
	}
	if requested, ok := e.Body.(*eventsv1.SandboxRequested); ok {
		p.owners.put(agg, metering.OwnerOf(requested))
		p.metrics.free.Inc()
		return 0, nil
	}
	owner, err := p.owners.of(ctx, agg)
	if err != nil {
		return 0, err
	}
	if b.row, err = Map(e, agg, owner); err != nil {
		return 0, err
	}
	if agg.Kind != subject.KindSandbox {
		return 1, nil
	}
	if b.reading, err = MapReading(b.row, e, agg, owner); err != nil {
		return 0, err
	}
	return 2, nil
}
