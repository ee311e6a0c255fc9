package projection

import (
	"context"
	"math"
	"sync"
)

// position is how far a view has come, and who waits for it to come further.
type position struct {
	mu   sync.Mutex
	seen uint64
	// nearest is the smallest sequence that somebody waits for: an event before it wakes nobody, which is nearly every event.
	nearest uint64
	waiters map[chan struct{}]uint64
}

func newPosition() *position {
	return &position{nearest: math.MaxUint64, waiters: map[chan struct{}]uint64{}}
}

// advance says that the view is at seq; it goes back only where a session starts.
func (p *position) advance(seq uint64, reset bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if seq <= p.seen && !reset {
		return
	}
	p.seen = seq
	if seq < p.nearest {
		return
	}
	p.nearest = math.MaxUint64
	for w, target := range p.waiters {
		if target <= seq {
			delete(p.waiters, w)
			close(w)
			continue
		}
		p.nearest = min(p.nearest, target)
	}
}

// wait returns once the view has been at seq or behind it; otherwise where it is when ctx ends, and the error of ctx.
func (p *position) wait(ctx context.Context, seq uint64) (seen uint64, err error) {
	p.mu.Lock()
	if p.seen >= seq {
		defer p.mu.Unlock()
		return p.seen, nil
	}
	w := make(chan struct{})
	p.waiters[w] = seq
	p.nearest = min(p.nearest, seq)
	p.mu.Unlock()
	select {
	case <-w:
		return seq, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// nearest may stay too small until the view passes it: that costs one look at the others.
	delete(p.waiters, w)
	return p.seen, ctx.Err()
}
