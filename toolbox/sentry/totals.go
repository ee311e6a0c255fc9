package sentry

import (
	"context"
	"time"
)

// Totals is what a sandbox uses by its sentry's own word.
type Totals struct {
	// CPU is that of the guest's programs, without the sentry's own work.
	CPU time.Duration
	// MemoryBytes are in use now.
	MemoryBytes uint64
}

// Totals asks the sentry, where no cgroup can tell.
func (c *Client) Totals(ctx context.Context) (Totals, error) {
	var event struct {
		// Nanoseconds by container.
		ContainerUsage map[string]uint64 `json:"containerUsage"`
	}
	if err := c.call(ctx, "containerManager.Event", c.container, &event); err != nil {
		return Totals{}, err
	}
	var memory struct{ Total uint64 }
	if err := c.call(ctx, "Usage.Collect", map[string]any{"Full": true}, &memory); err != nil {
		return Totals{}, err
	}
	return Totals{CPU: time.Duration(event.ContainerUsage[c.container]), MemoryBytes: memory.Total}, nil //nolint:gosec // years fit
}

// Totals implements Control: runsc has no way to ask that is cheap enough.
func (c *Command) Totals(context.Context) (Totals, error) { return Totals{}, ErrUnsupported }
