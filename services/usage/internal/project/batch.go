package project

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/feed"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

// maxLinks bounds the traces that a batch's span leads to: those of its first events.
const maxLinks = 64

// batch is events that are inserted together.
type batch struct {
	rows clickhouse.Block
	// row is the one that is being made, reading a second one of the same event.
	row, reading clickhouse.Row
	// events and bytes count all of them, also those that make no row.
	events, bytes int
	// last is the sequence of the last one, stored when the stream took it, in Unix nanoseconds.
	last   uint64
	stored int64
	// begun is when the first one came.
	begun time.Time
	// behind: when the last event came, more waited in the log.
	behind bool
	links  []trace.Link
	traces map[trace.TraceID]bool
}

// count takes an event into account.
func (b *batch) count(m feed.Message) {
	if b.events == 0 {
		b.begun = time.Now()
		b.rows.Grow(int(min(m.Left, MaxBatch))) //nolint:gosec // at most MaxBatch
	}
	b.events++
	b.bytes += len(m.Data)
	b.last, b.stored, b.behind = m.Seq, m.Stored, m.Left > 0
}

func (b *batch) full() bool { return b.events >= MaxBatch || b.bytes >= maxBatchBytes }

// lingers is how much longer a batch waits for more events. An empty one waits.
func (b *batch) lingers(now time.Time) time.Duration {
	switch {
	case b.events == 0:
		return idle
	case b.behind:
		return lingerBehind - now.Sub(b.begun)
	}
	return linger - now.Sub(b.begun)
}

// link leads the batch's span to the trace of an event.
func (b *batch) link(h envelope.Head) {
	if len(b.links) == maxLinks || h.Traceparent == "" {
		return
	}
	at := trace.SpanContextFromContext(telemetry.Continue(context.Background(), envelope.Meta{Traceparent: h.Traceparent, Tracestate: h.Tracestate}))
	if !at.IsValid() || b.traces[at.TraceID()] {
		return
	}
	if b.traces == nil {
		b.traces = map[trace.TraceID]bool{}
	}
	b.traces[at.TraceID()] = true
	b.links = append(b.links, trace.Link{SpanContext: at})
}

// reset empties it and keeps its memory.
func (b *batch) reset() {
	b.rows.Reset()
	clear(b.traces)
	*b = batch{rows: b.rows, links: b.links[:0], traces: b.traces}
}
