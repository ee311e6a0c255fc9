package telemetry

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
)

const redacted = "[redacted]"

// Secret is a text that must not be read in a log, an error or a dump: however it is printed, "[redacted]" comes out.
// string(s) is the text itself.
type Secret string

// Format prints "[redacted]", whatever the verb.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// LogValue is "[redacted]".
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalJSON is "[redacted]".
func (Secret) MarshalJSON() ([]byte, error) { return json.Marshal(redacted) }

// MarshalText is "[redacted]".
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// handler adds the ids of the call to each line and keeps secrets out of it. Group and attributes of its own are applied at
// each line, so that the ids stay at the top level also below WithGroup.
type handler struct {
	top slog.Handler
	// steps are the groups and attributes that With and WithGroup added, in order.
	steps []step
}

type step struct {
	group string
	attrs []slog.Attr
}

// NewHandler wraps a handler: it adds trace_id, span_id and correlation_id from the context of the line where they are set. An
// attribute that is a Secret, or holds several, or is a []byte prints as "[redacted]".
func NewHandler(next slog.Handler) slog.Handler { return &handler{top: next} }

func (h *handler) Enabled(ctx context.Context, l slog.Level) bool { return h.top.Enabled(ctx, l) }

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	next := h.top
	if ids := callIDs(ctx); len(ids) > 0 {
		next = next.WithAttrs(ids)
	}
	for _, s := range h.steps {
		if s.group != "" {
			next = next.WithGroup(s.group)
		} else {
			next = next.WithAttrs(s.attrs)
		}
	}
	clean := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		clean.AddAttrs(redact(a))
		return true
	})
	return next.Handle(ctx, clean)
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	if len(attrs) == 0 {
		return h
	}
	clean := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clean[i] = redact(a)
	}
	return h.with(step{attrs: clean})
}

func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	return h.with(step{group: name})
}

func (h *handler) with(s step) slog.Handler {
	steps := make([]step, 0, len(h.steps)+1)
	return &handler{top: h.top, steps: append(append(steps, h.steps...), s)}
}

func redact(a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindLogValuer:
		return redact(slog.Attr{Key: a.Key, Value: a.Value.Resolve()})
	case slog.KindGroup:
		group := a.Value.Group()
		clean := make([]slog.Attr, len(group))
		for i, g := range group {
			clean[i] = redact(g)
		}
		return slog.Attr{Key: a.Key, Value: slog.GroupValue(clean...)}
	case slog.KindAny:
		switch a.Value.Any().(type) {
		// Bytes in a log are somebody's payload.
		case Secret, *Secret, []Secret, map[string]Secret, []byte:
			return slog.String(a.Key, redacted)
		}
	}
	return a
}

func callIDs(ctx context.Context) []slog.Attr {
	var ids []slog.Attr
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		ids = append(ids, slog.String("trace_id", sc.TraceID().String()), slog.String("span_id", sc.SpanID().String()))
	}
	if id := Correlation(ctx); id != "" {
		ids = append(ids, slog.String("correlation_id", id))
	}
	return ids
}
