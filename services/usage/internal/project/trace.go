package project

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// span begins one around a batch. A batch belongs to many traces, so it is in none and leads to them.
func (p *Projector) span(ctx context.Context, b *batch) (context.Context, trace.Span) {
	return p.tracer.Start(ctx, "usage.batch", trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(b.links...),
		trace.WithAttributes(attribute.Int("messaging.batch.message_count", b.events)))
}
