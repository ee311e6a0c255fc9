package project

import (
	"context"
	"fmt"
	"time"

	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

// insert writes the rows of a batch. It tries again until it succeeds; an error is that of ctx.
func (p *Projector) insert(ctx context.Context, b *batch, life string) error {
	ctx, span := p.span(ctx, b)
	defer span.End()
	token := token(life, &b.rows)
	for attempt := 1; ; attempt++ {
		err := p.write(ctx, token, &b.rows)
		if err == nil {
			return nil
		}
		span.AddEvent("attempt failed")
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.metrics.retries.Inc()
		p.log.Warn("cannot insert a batch, trying again", "rows", b.rows.Len(), "attempt", attempt, "error", err)
		pause(ctx, attempt)
	}
}

func (p *Projector) write(ctx context.Context, token string, rows *clickhouse.Block) error {
	if rows.Len() == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	start := time.Now()
	if err := p.sink.Insert(ctx, token, rows); err != nil {
		return err
	}
	p.metrics.insert.Observe(time.Since(start).Seconds())
	p.metrics.rows.Add(float64(rows.Len()))
	return nil
}

// token names exactly these rows, for the server's log of queries. First and last sequence would not do: after a crash another batch may
// have the same two and more rows between them. life is that of the stream and of the rows.
func token(life string, rows *clickhouse.Block) string {
	return fmt.Sprintf("%s:%d:%x", life, schemaVersion, rows.Digest())
}
