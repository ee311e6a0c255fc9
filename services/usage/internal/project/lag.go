package project

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/sandtrail/sandtrail/libs/topology"
)

// progress is how far the rows have come, for the metrics.
type progress struct {
	known  atomic.Bool
	seq    atomic.Uint64
	stored atomic.Int64
}

func (p *progress) set(seq uint64, stored int64) {
	p.seq.Store(seq)
	p.stored.Store(stored)
	p.known.Store(true)
}

// measureLag sets the gauges of what waits.
func (p *Projector) measureLag(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	stream, err := p.js.Stream(ctx, topology.StreamEvents)
	if err != nil || !p.done.known.Load() {
		return
	}
	last, done := stream.CachedInfo().State.LastSeq, p.done.seq.Load()
	waiting := last - min(done, last)
	p.metrics.pending.Set(float64(waiting))
	behind := 0.0
	if stored := p.done.stored.Load(); waiting > 0 && stored != 0 {
		behind = time.Since(time.Unix(0, stored)).Seconds()
	}
	p.metrics.behind.Set(behind)
}
