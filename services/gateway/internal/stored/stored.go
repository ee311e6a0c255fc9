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
	// scarceBytes is a page where other readers hold all the memory: it may be slow to read, and it is not counted.
	scarceBytes = 64 << 10
	// PageWait bounds one page. Heartbeats wait for it, so it must stay well below their distance.
	PageWait = 4 * time.Second
)

// Each gives every message of a subject or filter from a sequence on to fn, until the stream's present end or until fn fails, and
// returns fn's error as it is. It takes as long as fn does; a page that the server does not give within PageWait is unavailable
// with reason log_unavailable, and so is every page while the connection is down.
//
// What it holds meanwhile counts in memory.
func Each(ctx context.Context, js jetstream.JetStream, memory *Memory, stream, subject string, from uint64, fn func(directget.Message) error) error {
	for {
		next, more, err := one(ctx, js, memory, stream, subject, from, fn)
		if err != nil || !more {
			return err
		}
		from = next
	}
}

// One gives the first message of a subject from a sequence on, its last one for 0; nil without one. Errors are those of Each.
func One(ctx context.Context, js jetstream.JetStream, stream, subject string, from uint64) (*directget.Message, error) {
	if !js.Conn().IsConnected() {
		return nil, Unreachable(jetstream.ErrNoStreamResponse)
	}
	wait, cancel := context.WithTimeout(ctx, PageWait)
	defer cancel()
	var messages []directget.Message
	var err error
	if from == 0 {
		messages, err = directget.Last(wait, js, stream, subject, 1)
	} else {
		messages, _, err = directget.Page(wait, js, stream, subject, from, 1, pageBytes)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, Unreachable(err)
	case len(messages) == 0:
		return nil, nil
	}
	return &messages[0], nil
}

// Next gives the first message of a subject from a sequence on as the leader of the stream has it; nil without one, which is certain. Errors
// are those of Each.
func Next(ctx context.Context, js jetstream.JetStream, stream, subject string, from uint64) (*directget.Message, error) {
	if !js.Conn().IsConnected() {
		return nil, Unreachable(jetstream.ErrNoStreamResponse)
	}
	wait, cancel := context.WithTimeout(ctx, PageWait)
	defer cancel()
	m, err := directget.Leader(wait, js, stream, subject, from)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, Unreachable(err)
	}
	return m, nil
}

// one gives the messages of one page and says from where on there are more.
func one(
	ctx context.Context, js jetstream.JetStream, memory *Memory, stream, subject string, from uint64, fn func(directget.Message) error,
) (next uint64, more bool, err error) {
	size := pageBytes
	if memory.Take(size) {
		defer memory.Give(size)
	} else {
		size = scarceBytes
	}
	messages, pending, err := page(ctx, js, stream, subject, from, size)
	switch {
	case err != nil && ctx.Err() != nil:
		return 0, false, ctx.Err()
	case err != nil:
		return 0, false, Unreachable(err)
	}
	for _, m := range messages {
		if err := fn(m); err != nil {
			return 0, false, err
		}
		from = m.Seq + 1
	}
	return from, pending > 0 && len(messages) > 0, nil
}

func page(ctx context.Context, js jetstream.JetStream, stream, subject string, from uint64, size int) ([]directget.Message, int, error) {
	if !js.Conn().IsConnected() {
		// A request would wait in the connection's buffer and be answered to nobody.
		return nil, 0, jetstream.ErrNoStreamResponse
	}
	ctx, cancel := context.WithTimeout(ctx, PageWait)
	defer cancel()
	return directget.Page(ctx, js, stream, subject, from, pageMessages, size)
}

// Unreachable is the fault of a log that does not answer.
func Unreachable(err error) error {
	return fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "the event log cannot be reached; try again").
		WithRetry(time.Second).Because(err)
}
