package project

import (
	"context"
	"time"

	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

// insert writes the rows of a batch. It tries again until it succeeds; an error is that of ctx.
func (p *Projector) insert(ctx context.Context, b *batch) error {
	ctx, span := p.span(ctx, b)
	defer span.End()
	for attempt := 1; ; attempt++ {
		err := p.write(ctx, &b.rows)
		if err == nil {
			return nil
		}
		span.AddEvent("attempt failed")
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.metrics.retries.Inc()
		p.log.Warn("cannot insert a batch, trying again", "rows", b.rows.Len(), "attempt", attempt, "error", err)
		backOff(ctx, attempt)
	}
}

func (p *Projector) write(ctx context.Context, rows *clickhouse.Block) error {
	if rows.Len() == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	start := time.Now()
	if err := p.sink.Insert(ctx, rows); err != nil {
		return err
	}
	p.metrics.insert.Observe(time.Since(start).Seconds())
	p.metrics.rows.Add(float64(rows.Len()))
	return nil
}
