package project

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/feed"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

// scanFailures is how often in a row the reading of events may fail.
const scanFailures = 10

// Scan makes rows of a part of the log, the same that a projector makes. It stores no checkpoint and sets nothing aside.
type Scan struct {
	JS  jetstream.JetStream
	Log *slog.Logger
	// Batch is how many events go together at most: 1 to MaxBatch, 0 is MaxBatch.
	Batch int
}

// Part is what became of events that follow each other.
type Part struct {
	// Rows are of the caller until it returns.
	Rows *clickhouse.Block
	// Events counts them, Unusable those of them that never make a row.
	Events, Unusable int
	// Last is the sequence of the last one.
	Last uint64
}

type part struct {
	batch
	unusable int
}

// Run reads from one sequence to another, both included, which the log must have, and gives do each part in order. While do works, the
// next one is read. An error is that of do, of ctx, or of a log that cannot be read.
func (s Scan) Run(ctx context.Context, from, to uint64, do func(context.Context, Part) error) error {
	if from > to {
		return nil
	}
	if s.Batch <= 0 || s.Batch > MaxBatch {
		s.Batch = MaxBatch
	}
	metrics, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		return err
	}
	p := &Projector{js: s.JS, log: s.Log, metrics: metrics, owners: newOwners(s.JS), words: newWords()}
	parts, spare := make(chan *part, 1), make(chan *part, 3)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(parts)
		return s.read(ctx, p, from, to, parts, spare)
	})
	g.Go(func() error {
		for b := range parts {
			if err := do(ctx, Part{Rows: &b.rows, Events: b.events, Unusable: b.unusable, Last: b.last}); err != nil {
				return err
			}
			b.reset()
			b.unusable = 0
			select {
			case spare <- b:
			default:
			}
		}
		return nil
	})
	return g.Wait()
}

// read reads by one feed after the other.
func (s Scan) read(ctx context.Context, p *Projector, from, to uint64, parts chan<- *part, spare <-chan *part) error {
	r := &scanning{s: s, p: p, next: from, to: to, parts: parts, spare: spare}
	for failures := 0; r.next <= to; {
		before := r.next
		err := r.feed(ctx)
		if err == nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if r.next > before {
			failures = 0
		}
		if failures++; failures >= scanFailures || p.closed() {
			return fmt.Errorf("read the log: %w", err)
		}
		s.Log.DebugContext(ctx, "cannot read events, trying again", "seq", r.next, "error", err)
		backOff(ctx, failures)
	}
	return nil
}

// scanning is one Run.
type scanning struct {
	s        Scan
	p        *Projector
	next, to uint64
	parts    chan<- *part
	spare    <-chan *part
}

// feed reads until everything is read or the feed ends.
func (r *scanning) feed(ctx context.Context) error {
	f, err := feed.Open(ctx, r.p.js, feed.Options{Stream: topology.StreamEvents, From: r.next, Window: window})
	if err != nil {
		return err
	}
	defer f.Close()
	b := r.empty()
	for {
		m, ok, err := f.Next(ctx, idle)
		if err != nil {
			return err
		}
		if !ok {
			if err := r.reaches(ctx); err != nil {
				return err
			}
			continue
		}
		over := m.Seq > r.to
		if !over {
			if err := r.take(ctx, b, m); err != nil {
				return err
			}
			over = m.Seq == r.to
		}
		if over || b.events >= r.s.Batch || b.full() {
			if b.events > 0 {
				select {
				case r.parts <- b:
				case <-ctx.Done():
					return ctx.Err()
				}
				r.next = b.last + 1
			}
			if over {
				r.next = r.to + 1
				return nil
			}
			b = r.empty()
		}
	}
}

// reaches fails where the log has lost its end.
func (r *scanning) reaches(ctx context.Context) error {
	last, err := Last(ctx, r.p.js)
	if err == nil && last < r.to {
		err = fmt.Errorf("the log ends at %d and not at %d", last, r.to)
	}
	return err
}

func (r *scanning) empty() *part {
	select {
	case b := <-r.spare:
		return b
	default:
		return &part{}
	}
}

// take makes the rows of an event. What can never be a row is counted.
func (r *scanning) take(ctx context.Context, b *part, m feed.Message) error {
	b.count(m)
	for attempt := 1; ; attempt++ {
		made, err := r.p.row(ctx, &b.batch, m, m.Head())
		var (
			bad     *unusable
			crashed *dlq.PanicError
		)
		switch {
		case err == nil:
			if made > 0 {
				b.rows.Add(&b.row)
			}
			if made > 1 {
				b.rows.Add(&b.reading)
			}
			return nil
		case errors.As(err, &bad), errors.As(err, &crashed):
			r.s.Log.WarnContext(ctx, "an event makes no row", "seq", m.Seq, "error", err)
			b.unusable++
			return nil
		case ctx.Err() != nil || attempt >= scanFailures:
			return err
		}
		backOff(ctx, attempt)
	}
}

// Last is the sequence of the log's last event.
func Last(ctx context.Context, js jetstream.JetStream) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	stream, err := js.Stream(ctx, topology.StreamEvents)
	if err != nil {
		return 0, fmt.Errorf("look up the stream of events: %w", err)
	}
	return stream.CachedInfo().State.LastSeq, nil
}
