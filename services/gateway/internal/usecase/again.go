package usecase

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

// againAfter is how long one answer of the server is waited for. A request, or its answer, that was under way when a connection or a server
// broke is lost without a word.
const againAfter = 2 * time.Second

// again makes an attempt after the other, each with a time of its own, until one is answered or ctx ends. do must be the same thing when it
// is done twice.
func again(ctx context.Context, do func(context.Context) error) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, againAfter)
		err := do(attempt)
		cancel()
		silent := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout)
		if !silent || ctx.Err() != nil {
			return err
		}
	}
}
