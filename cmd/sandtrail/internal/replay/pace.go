package replay

import (
	"context"
	"time"

	"github.com/sandtrail/sandtrail/libs/pause"
)

// pace bounds how many events a second go through. It waits in pieces that are worth a timer.
type pace struct {
	each time.Duration
	due  time.Time
}

const (
	worthWaiting = 5 * time.Millisecond
	// burst is how much of what was not used is made up for.
	burst = 100 * time.Millisecond
)

func newPace(rate float64) *pace {
	if rate <= 0 {
		return &pace{}
	}
	return &pace{each: time.Duration(float64(time.Second) / rate), due: time.Now()}
}

func (p *pace) wait(ctx context.Context) error {
	if p.each == 0 {
		return ctx.Err()
	}
	now := time.Now()
	if p.due = p.due.Add(p.each); now.Sub(p.due) > burst {
		p.due = now.Add(-burst)
	}
	if ahead := p.due.Sub(now); ahead > worthWaiting {
		return pause.For(ctx, ahead)
	}
	return ctx.Err()
}
