// Package eventlog appends to and loads the histories of aggregates. There is no append without an expectation: whoever
// writes says behind which event, and is told when somebody was faster.
package eventlog

import (
	"context"
	"errors"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// ErrConflict: the aggregate has moved on since it was loaded. Load again, decide again.
var ErrConflict = errors.New("the aggregate has changed since it was loaded")

// Tail is the end of an aggregate's history: where the next event goes. The zero Tail means that there is none yet.
type Tail struct {
	Seq    uint64
	Digest []byte
}

// History is an aggregate's events in order.
type History struct {
	Aggregate subject.Aggregate
	Events    []envelope.Recorded
}

// Tail is where the next event goes.
func (h History) Tail() Tail {
	if len(h.Events) == 0 {
		return Tail{}
	}
	last := h.Events[len(h.Events)-1]
	return Tail{Seq: last.Seq, Digest: last.Digest}
}

// Entry is one aggregate's part of an atomic batch.
type Entry struct {
	Aggregate subject.Aggregate
	After     Tail
	Events    []envelope.Event
}

// Log is the event log.
//
// Every method gives fault.Unavailable with ReasonLogUnavailable when the log cannot be reached, and ReasonLogFull when it
// refuses for lack of room.
type Log interface {
	// Append records events behind after and returns them as recorded. ErrConflict: after is not the tail. An append whose
	// acknowledgement was lost counts as done when its ids are found at the tail, so Append of the same events may be
	// repeated. One event costs one publish; several of one aggregate are an atomic batch.
	Append(ctx context.Context, agg subject.Aggregate, after Tail, events ...envelope.Event) ([]envelope.Recorded, error)
	// AppendBatch records the events of several aggregates, all or none. About 12 ms on a single server: not for hot paths.
	AppendBatch(ctx context.Context, entries ...Entry) ([]envelope.Recorded, error)
	// Load reads an aggregate's whole history; an unknown aggregate has an empty one.
	Load(ctx context.Context, agg subject.Aggregate) (History, error)
}
