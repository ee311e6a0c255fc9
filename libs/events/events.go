// Package events lets other programs subscribe to the log: a Watermill subscriber with groups of its own, filters, and places to go on
// from. Each event comes at least once, under an id that is the same however often it comes.
package events

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/watermillnats"
)

// Of is the event that a message of a Subscriber holds. Body is nil where its type is newer than this program; a message that is no
// event is an error that no retry can help.
func Of(m *message.Message) (envelope.Recorded, error) {
	source, ok := watermillnats.Source(m.Context())
	if !ok {
		return envelope.Recorded{}, fault.New(fault.Internal, fault.ReasonInternal, "the message did not come from a subscriber of the log")
	}
	e, err := envelope.Decode(source.Subject, source.Seq, source.Header, source.Data)
	if err != nil {
		return e, fmt.Errorf("read event %d: %w", source.Seq, err)
	}
	return e, nil
}

// sequence is where a message of a Subscriber stands in the log; 0 of any other.
func sequence(ctx context.Context) uint64 {
	source, _ := watermillnats.Source(ctx)
	return source.Seq
}

// typeOf is the full name of the type that headers give.
func typeOf(h nats.Header) string { return h.Get(envelope.HeaderType) }
