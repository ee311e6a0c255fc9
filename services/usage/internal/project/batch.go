package project

import (
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandtrail/sandtrail/libs/feed"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

// maxLinks bounds the traces that a batch's span leads to: those of its first events.
const maxLinks = 64

// batch is events that are inserted together.
type batch struct {
	rows []clickhouse.Row
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
func (b *batch) link(h nats.Header) {
	if len(b.links) == maxLinks {
		return
	}
	link, ok := telemetry.Link(h)
	if !ok || b.traces[link.SpanContext.TraceID()] {
		return
	}
	if b.traces == nil {
		b.traces = map[trace.TraceID]bool{}
	}
	b.traces[link.SpanContext.TraceID()] = true
	b.links = append(b.links, link)
}

// reset empties it and keeps its memory.
func (b *batch) reset() {
	clear(b.rows)
	clear(b.traces)
	*b = batch{rows: b.rows[:0], links: b.links[:0], traces: b.traces}
}
