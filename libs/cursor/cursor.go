// Package cursor names places in the log, and tells when what stands behind one is no longer kept.
package cursor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// Cursor is a place in the log: behind one event. The zero Cursor is the log's beginning.
type Cursor struct {
	// Log is the incarnation of the log that the sequence belongs to; "" where the reader does not know it, which is then not checked.
	Log string
	// Seq is the stream sequence of the last event that was taken.
	Seq uint64
}

// String is <log>:<sequence>, or the sequence alone; "" for the beginning.
func (c Cursor) String() string {
	switch {
	case c == (Cursor{}):
		return ""
	case c.Log == "":
		return strconv.FormatUint(c.Seq, 10)
	}
	return c.Log + ":" + strconv.FormatUint(c.Seq, 10)
}

// Parse is the inverse of String. fault.InvalidArgument where s is no cursor.
func Parse(s string) (Cursor, error) {
	if s == "" {
		return Cursor{}, nil
	}
	log, number, ok := strings.Cut(s, ":")
	if !ok {
		log, number = "", s
	}
	seq, err := strconv.ParseUint(number, 10, 64)
	if err != nil || (ok && !subject.ValidToken(log)) {
		return Cursor{}, fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request is not valid").
			WithFields(map[string]string{"cursor": "is not a sequence, nor the id of a log, a colon and a sequence"})
	}
	return Cursor{Log: log, Seq: seq}, nil
}

// Bounds are what a log holds at a moment.
type Bounds struct {
	// Log is its incarnation.
	Log string
	// First and Last are the sequences of its first and last event; First is one behind Last where it is empty.
	First, Last uint64
}

// BoundsOf asks the server. fault.Unavailable where it does not answer.
func BoundsOf(ctx context.Context, js jetstream.JetStream) (Bounds, error) {
	s, err := js.Stream(ctx, topology.StreamEvents)
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return Bounds{}, err
		}
		return Bounds{}, fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "the log cannot be reached").Because(err)
	}
	info := s.CachedInfo()
	return Bounds{Log: info.Config.Metadata[topology.MetaIncarnation], First: info.State.FirstSeq, Last: info.State.LastSeq}, nil
}

// Oldest is the oldest place to go on from without missing anything that is there.
func (b Bounds) Oldest() Cursor {
	return Cursor{Log: b.Log, Seq: max(b.First, 1) - 1}
}

// Holds refuses a cursor behind which something is missing: events that are no longer kept, or all of another log. That is
// fault.FailedPrecondition with ReasonCursorExpired and the oldest place in the field cursor. Whoever begins at the beginning, with the
// zero Cursor, takes what is there. A cursor beyond the end is good: nothing is there yet.
func (b Bounds) Holds(c Cursor) error {
	switch {
	case c == (Cursor{}):
		return nil
	case c.Log != "" && c.Log != b.Log:
		return expired("the cursor is of another log", b.Oldest())
	case c.Seq < b.Oldest().Seq:
		return expired(fmt.Sprintf("events before %d are no longer kept", b.First), b.Oldest())
	}
	return nil
}

func expired(why string, oldest Cursor) error {
	return fault.Newf(fault.FailedPrecondition, fault.ReasonCursorExpired, "%s; the oldest position is %s", why, oldest.orBeginning()).
		WithFields(map[string]string{"cursor": "the oldest position is " + oldest.orBeginning()})
}

func (c Cursor) orBeginning() string {
	if s := c.String(); s != "" {
		return s
	}
	return "0"
}
