package watermillnats

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sandtrail/sandtrail/libs/dlq"
)

type outcomeKey struct{}

// outcome is what a handler returned. Written before the nack and read behind it.
type outcome struct{ err error }

func withOutcome(ctx context.Context, o *outcome) context.Context {
	return context.WithValue(ctx, outcomeKey{}, o)
}

// Report is a middleware that tells the subscriber why a message is nacked, which Watermill does not: without it a handler's error has
// neither its reason nor its retry hint in the dead letters, and poison is tried again. A panic is an error with the place where it was.
func Report(h message.HandlerFunc) message.HandlerFunc {
	return func(m *message.Message) (out []*message.Message, err error) {
		defer func() {
			if p := recover(); p != nil {
				err = dlq.Caught(p)
			}
			if told, ok := m.Context().Value(outcomeKey{}).(*outcome); ok {
				told.err = err
			}
		}()
		return h(m)
	}
}
