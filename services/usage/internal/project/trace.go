package project

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandtrail/sandtrail/libs/telemetry"
)

// maxLinks bounds the traces that a batch's span leads to: those of its first events.
const maxLinks = 64

// span begins one around a batch. A batch belongs to many traces, so it is in none and leads to them.
func (p *Projector) span(ctx context.Context, messages []jetstream.Msg) (context.Context, trace.Span) {
	ctx, span := p.tracer.Start(ctx, "usage.batch", trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(attribute.Int("messaging.batch.message_count", len(messages))))
	if !span.IsRecording() {
		return ctx, span
	}
	seen := map[trace.TraceID]bool{}
	for _, m := range messages {
		link, ok := telemetry.Link(m.Headers())
		if !ok || seen[link.SpanContext.TraceID()] {
			continue
		}
		if len(seen) == maxLinks {
			break
		}
		seen[link.SpanContext.TraceID()] = true
		span.AddLink(link)
	}
	return ctx, span
}
