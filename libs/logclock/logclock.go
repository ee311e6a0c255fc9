// Package logclock is the time by the clock of the log's server. Whoever ends or removes something because its time has come goes by
// it: the clock of one host may be hours off, or be set while a program runs, and what it would remove too early is gone for good.
package logclock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/topology"
)

const (
	// maxRound is how long the server's answer may take to count: the time is that much uncertain.
	maxRound = 2 * time.Second
	// every is how often Run asks again.
	every = 30 * time.Second
)

// Clock is safe for concurrent use.
type Clock struct {
	js jetstream.JetStream

	mu sync.Mutex
	// there is the server's time when this host's monotonic clock stood at here.
	there, here time.Time
}

// New reads the server's time. It fails when the log cannot be reached.
func New(ctx context.Context, js jetstream.JetStream) (*Clock, error) {
	c := &Clock{js: js}
	return c, c.Sync(ctx)
}

// Sync reads the server's time again. Where it fails the clock goes on from the last time.
func (c *Clock) Sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	begin := time.Now()
	s, err := c.js.Stream(ctx, topology.StreamEvents)
	if err != nil {
		return fmt.Errorf("read the log's clock: %w", err)
	}
	round := time.Since(begin)
	there := s.CachedInfo().TimeStamp
	switch {
	case there.IsZero():
		return errors.New("read the log's clock: the server does not say what time it is")
	case round > maxRound:
		return fmt.Errorf("read the log's clock: the answer took %s", round)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.there, c.here = there.UTC(), begin.Add(round/2)
	return nil
}

// Run keeps it right until ctx ends.
func (c *Clock) Run(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_ = c.Sync(ctx) // the next one may succeed, and until then it goes by this host's monotonic clock
		case <-ctx.Done():
			return
		}
	}
}

// Now is the server's time. Between two readings it advances by this host's monotonic clock, which nobody can set.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.there.Add(time.Since(c.here))
}

// Ahead is how far this host's clock is ahead of the server's.
func (c *Clock) Ahead() time.Duration { return time.Now().Round(0).Sub(c.Now()) }
