package telemetry

import (
	"context"
	"slices"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandtrail/sandtrail/libs/envelope"
)

// MaxCorrelation bounds a correlation id, in bytes.
const MaxCorrelation = 128

type correlationKey struct{}

// WithCorrelation sets the id under which a call stands in logs, traces and events. An id that is empty, longer than
// MaxCorrelation or not printable ASCII without spaces is ignored: it comes from outside and goes into headers.
func WithCorrelation(ctx context.Context, id string) context.Context {
	if !validCorrelation(id) {
		return ctx
	}
	return context.WithValue(ctx, correlationKey{}, id)
}

// Correlation is the id that WithCorrelation set, "" without one.
func Correlation(ctx context.Context) string {
	id, _ := ctx.Value(correlationKey{}).(string)
	return id
}

func validCorrelation(id string) bool {
	if id == "" || len(id) > MaxCorrelation {
		return false
	}
	for _, b := range []byte(id) {
		if b <= ' ' || b > '~' {
			return false
		}
	}
	return true
}

// Inject puts the trace context and correlation id of ctx into a message's headers. A nil header stays nil.
func Inject(ctx context.Context, h nats.Header) {
	if h == nil {
		return
	}
	propagation.TraceContext{}.Inject(ctx, carrier(h))
	if id := Correlation(ctx); id != "" {
		h.Set(envelope.HeaderCorrelation, id)
	}
}

// Extract returns ctx with the trace context and correlation id of a message's headers; what is malformed is ignored.
func Extract(ctx context.Context, h nats.Header) context.Context {
	ctx = propagation.TraceContext{}.Extract(ctx, carrier(h))
	return WithCorrelation(ctx, h.Get(envelope.HeaderCorrelation))
}

// Continue returns ctx with the trace context that an event carries: what follows goes on with the event's trace. One that is
// malformed or empty is ignored.
func Continue(ctx context.Context, e envelope.Meta) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": e.Traceparent, "tracestate": e.Tracestate})
}

// Link is a link to the trace that a message's headers carry; false without one.
func Link(h nats.Header) (trace.Link, bool) {
	sc := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier(h)))
	return trace.Link{SpanContext: sc}, sc.IsValid()
}

// carrier shows NATS headers, whose names keep their case, to OpenTelemetry.
type carrier nats.Header

func (c carrier) Get(key string) string { return nats.Header(c).Get(key) }

func (c carrier) Set(key, value string) { nats.Header(c).Set(key, value) }

func (c carrier) Keys() []string {
	keys := make([]string, 0, len(c))
	for k := range c {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
