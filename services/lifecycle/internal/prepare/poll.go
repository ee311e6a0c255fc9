package prepare

import (
	"context"
	"time"
)

const pollEvery = 50 * time.Millisecond

type poll struct {
	ctx    context.Context
	ticker *time.Ticker
}

func newPoll(ctx context.Context) *poll { return &poll{ctx: ctx, ticker: time.NewTicker(pollEvery)} }

func (p *poll) stop() { p.ticker.Stop() }

// next waits for the next turn; it fails once the context has ended.
func (p *poll) next() error {
	select {
	case <-p.ctx.Done():
		return p.ctx.Err()
	case <-p.ticker.C:
		return nil
	}
}
