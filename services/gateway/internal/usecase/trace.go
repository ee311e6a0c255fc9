package usecase

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandtrail/sandtrail/libs/fault"
)

// span begins one below the call's, which brings its tracer with it: a call that is not traced makes none. The name must be one
// of few; what varies is the subject.
func span(ctx context.Context, name, subject string, kind trace.SpanKind) (context.Context, func(error)) {
	ctx, s := trace.SpanFromContext(ctx).TracerProvider().Tracer("github.com/sandtrail/sandtrail/services/gateway").Start(ctx, name,
		trace.WithSpanKind(kind), trace.WithAttributes(
			attribute.String("messaging.system", "nats"), attribute.String("messaging.destination.name", subject),
		))
	return ctx, func(err error) {
		if err != nil {
			s.SetStatus(codes.Error, string(fault.From(err).Reason))
		}
		s.End()
	}
}
