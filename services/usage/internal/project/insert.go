package project

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

// insert writes the rows of a batch. It tries again until it succeeds, or hands the batch back when ctx ends: false.
func (p *Projector) insert(ctx context.Context, b *batch) bool {
	ctx, span := p.span(ctx, b.messages)
	defer span.End()
	token := p.token(b.rows)
	for attempt := 1; ; attempt++ {
		err := p.write(ctx, token, b.rows)
		if err == nil {
			return true
		}
		span.AddEvent("attempt failed")
		if ctx.Err() != nil {
			b.handBack()
			return false
		}
		p.metrics.retries.Inc()
		p.log.Warn("cannot insert a batch, trying again", "rows", len(b.rows), "attempt", attempt, "error", err)
		pause(ctx, attempt)
	}
}

func (p *Projector) write(ctx context.Context, token string, rows []clickhouse.Row) error {
	if len(rows) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	start := time.Now()
	if err := p.sink.Insert(ctx, token, rows); err != nil {
		return err
	}
	p.metrics.insert.Observe(time.Since(start).Seconds())
	p.metrics.rows.Add(float64(len(rows)))
	return nil
}

// token names exactly these rows. First and last sequence would not do: after a crash another batch may have the same two and
// more rows between them, and the server would drop those.
func (p *Projector) token(rows []clickhouse.Row) string {
	h := sha256.New()
	var b []byte
	for i := range rows {
		b = append(b[:0], rows[i].ID[:]...)
		b = binary.BigEndian.AppendUint64(b, rows[i].Seq)
		h.Write(b)
	}
	return fmt.Sprintf("%s:%d:%s", p.incarnation, schemaVersion, hex.EncodeToString(h.Sum(nil)))
}

// acknowledge tells the log that the events of a batch are done. The server handles them in order, so the answer to the last one
// confirms all. One that is lost comes again and makes the same row.
func (p *Projector) acknowledge(ctx context.Context, b *batch) {
	defer b.release()
	if len(b.messages) == 0 {
		return
	}
	last := len(b.messages) - 1
	for _, m := range b.messages[:last] {
		if err := m.Ack(); err != nil {
			p.log.Warn("cannot acknowledge, the events will come again", "error", err)
			return
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ackTime)
	defer cancel()
	if err := b.messages[last].DoubleAck(ctx); err != nil {
		p.log.Warn("acknowledgement not confirmed, the events may come again", "error", err)
	}
}
