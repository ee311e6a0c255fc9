package app

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandtrail/sandtrail/toolbox/client"
)

// scope names the tracer of this service.
const scope = "github.com/sandtrail/sandtrail/services/exec"

// observed makes a client span of each toolbox call that belongs to a trace: the toolbox itself is too small for any. Calls that
// nobody asked for make none. unanswered is told of each call that got no answer.
func observed(toolbox func(sandbox string) *client.Client, tracer trace.Tracer, unanswered func(sandbox string)) func(string) *client.Client {
	return func(sandbox string) *client.Client {
		return toolbox(sandbox).Observed(func(ctx context.Context, call string) (context.Context, func(error)) {
			note := func(err error) {
				if errors.Is(err, client.ErrUnavailable) {
					unanswered(sandbox)
				}
			}
			if !trace.SpanContextFromContext(ctx).IsValid() {
				return ctx, note
			}
			ctx, span := tracer.Start(ctx, "toolbox "+call, trace.WithSpanKind(trace.SpanKindClient),
				trace.WithAttributes(attribute.String("sandtrail.sandbox", sandbox)))
			return ctx, func(err error) {
				note(err)
				if err != nil {
					span.SetStatus(codes.Error, outcome(err))
				}
				span.End()
			}
		})
	}
}

// outcome is the reason a toolbox gave: its message may quote what a tenant sent.
func outcome(err error) string {
	var refused *client.Error
	switch {
	case errors.As(err, &refused):
		return refused.Reason
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "gave up"
	default:
		return "unavailable"
	}
}
