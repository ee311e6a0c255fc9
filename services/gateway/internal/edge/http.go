package edge

import (
	"context"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/telemetry"
)

// Headers of every HTTP API: a caller's correlation id under either name, answered under the first.
const (
	HeaderCorrelation = "X-Correlation-Id"
	HeaderTrace       = "X-Trace-Id"
)

// Open begins a call of an HTTP API, whose name is the API's, a dot, and the route's id: its correlation id, its span, and the headers that
// every answer has. most bounds it; 0 does not. end must be called once the call is answered.
func (e *Edge) Open(w http.ResponseWriter, r *http.Request, tracer trace.TracerProvider, name, route string, most time.Duration) (ctx context.Context, end func()) {
	api, id, _ := strings.Cut(name, ".")
	ctx = Correlate(e.Calls.Begin(r.Context(), api, id), r.Header.Get(HeaderCorrelation), r.Header.Get(HeaderTrace))
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(r.Header))
	ctx, span := tracer.Tracer("github.com/sandtrail/sandtrail/services/gateway").Start(ctx, name,
		trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attribute.String("http.route", route)))
	cancel := func() {}
	if most > 0 {
		ctx, cancel = context.WithTimeout(ctx, most)
	}
	h := w.Header()
	h.Set(HeaderCorrelation, telemetry.Correlation(ctx))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if len(r.TransferEncoding) > 0 {
		// Who stands before us may have gone by a length beside it, and take what comes behind this body for something else.
		h.Set("Connection", "close")
	}
	return ctx, func() { cancel(); span.End() }
}

// Close logs a call of an HTTP API and gives the fault that its caller is shown; nil for one that went well. ctx is from Open.
func (e *Edge) Close(ctx context.Context, method string, start time.Time, err error) error {
	e.Finish(ctx, method, start, err)
	if err == nil {
		return nil
	}
	trace.SpanFromContext(ctx).SetStatus(codes.Error, string(fault.From(err).Reason))
	if fault.CodeOf(err) == fault.InvalidArgument { // what is wrong with a request is so whatever else is over
		return err
	}
	return e.Shown(ctx, err)
}
