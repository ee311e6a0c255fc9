// Package stored reads what stands in a stream for callers that follow it for a long time.
package stored

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/fault"
)

const (
	// pageMessages and pageBytes bound what one reader holds in memory, beside the last message that passes pageBytes.
	pageMessages = 256
	pageBytes    = 1 << 20
	// PageWait bounds one page. Heartbeats wait for it, so it must stay well below their distance.
	PageWait = 4 * time.Second
)

// Each gives every message of a subject or filter from a sequence on to fn, until the stream's present end or until fn fails, and
// returns fn's error as it is. It takes as long as fn does; a page that the server does not give within PageWait is unavailable
// with reason log_unavailable, and so is every page while the connection is down.
func Each(ctx context.Context, js jetstream.JetStream, stream, subject string, from uint64, fn func(directget.Message) error) error {
	for {
		messages, pending, err := page(ctx, js, stream, subject, from)
		switch {
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return Unreachable(err)
		}
		for _, m := range messages {
			if err := fn(m); err != nil {
				return err
			}
			from = m.Seq + 1
		}
		if pending == 0 || len(messages) == 0 {
			return nil
		}
	}
}

func page(ctx context.Context, js jetstream.JetStream, stream, subject string, from uint64) ([]directget.Message, int, error) {
	if !js.Conn().IsConnected() {
		// A request would wait in the connection's buffer and be answered to nobody.
		return nil, 0, jetstream.ErrNoStreamResponse
	}
	ctx, cancel := context.WithTimeout(ctx, PageWait)
	defer cancel()
	return directget.Page(ctx, js, stream, subject, from, pageMessages, pageBytes)
}

// Unreachable is the fault of a log that does not answer.
func Unreachable(err error) error {
	return fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "the event log cannot be reached; try again").
		WithRetry(time.Second).Because(err)
}
