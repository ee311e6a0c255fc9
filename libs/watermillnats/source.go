package watermillnats

import (
	"context"

	"github.com/sandtrail/sandtrail/libs/worker"
)

type sourceKey struct{}

// Source is the stored message behind a Watermill message, found in that message's context: its subject and sequence are not
// among the metadata, which are its headers and would go out again with a message that is passed on.
func Source(ctx context.Context) (worker.Message, bool) {
	m, ok := ctx.Value(sourceKey{}).(worker.Message)
	return m, ok
}

func withSource(ctx context.Context, m worker.Message) context.Context {
	return context.WithValue(ctx, sourceKey{}, m)
}
