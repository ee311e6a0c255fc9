package replay

import (
	"context"

	usageapp "github.com/sandtrail/sandtrail/services/usage/app"
)

// Rows makes usage rows of events.
type Rows struct{ To *usageapp.Rows }

// Take implements Sink.
func (r Rows) Take(ctx context.Context, e Event) ([]byte, error) {
	return r.To.Take(ctx, e.Message)
}

// Flush implements Sink.
func (r Rows) Flush(ctx context.Context) error { return r.To.Flush(ctx) }

// Size implements Sink.
func (r Rows) Size() int64 { return 0 }
