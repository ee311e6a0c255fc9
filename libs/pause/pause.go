// Package pause waits for a time that can be cut short.
package pause

import (
	"context"
	"time"
)

// For waits for d, or until ctx ends: then it returns context.Cause. A d of 0 or less does not wait, and an ended context may give nil then.
func For(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
