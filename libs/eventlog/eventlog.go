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
	// Append records events behind after and returns them as recorded. ErrConflict: after is not the tail, and nothing was
	// recorded. Events count as done when their ids stand directly behind after, so an append may be repeated, also when its
	// acknowledgement was lost and others have appended since; what stands in the log is returned, marked as Found. An id that stands anywhere
	// else is fault.Internal: one id is one fact. One event costs one publish; several are an atomic batch. Messages says how
	// events are completed and which are refused.
	Append(ctx context.Context, agg subject.Aggregate, after Tail, events ...envelope.Event) ([]envelope.Recorded, error)
	// AppendBatch records the events of several aggregates, all or none, under the rules of Append. 2 to 12 ms on a single
	// server: not for hot paths.
	AppendBatch(ctx context.Context, entries ...Entry) ([]envelope.Recorded, error)
	// Load reads an aggregate's whole history; an unknown aggregate has an empty one. In a cluster any replica answers, and one that
	// lags shows less than there is, even nothing: LoadUpTo, Known and Current are for whoever must not be misled.
	Load(ctx context.Context, agg subject.Aggregate) (History, error)
	// LastSeq is the sequence of an aggregate's last event, 0 without one. The leader of the log answers it: nothing that was
	// recorded before the call is missed.
	LastSeq(ctx context.Context, agg subject.Aggregate) (uint64, error)
}
