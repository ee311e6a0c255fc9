// Package project turns the facts of the log into rows of usage.
//
// Order of things: insert, then store the checkpoint. A projector that dies in between, or a log that is read again, makes the
// same rows again, and a row that stands already is replaced by itself. So every total is the same however often it happens. When
// ClickHouse is down the checkpoint stays where it is, what is held here is bounded, and nothing is dropped.
//
// A checkpoint at a sequence says that every event up to there is in ClickHouse or among the dead letters. That is so whoever
// stored it, because each projector reads on from one and leaves nothing out. So any number of them may run: nothing but their
// work depends on how many do.
//
// Two steps work at the same time, each on another batch: read (receive, decode, make rows) and write (insert, checkpoint). A slow
// step holds the other one up, and with it the server.
package project

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/errgroup"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/feed"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

// Bounds. At most three batches and a window are in memory.
const (
	// MaxBatch and maxBatchBytes are how many events are projected together at most, and their size as stored.
	MaxBatch      = 20_000
	maxBatchBytes = 32 << 20
	// window bounds what is received and not decoded yet, in bytes.
	window = 8 << 20
	// linger is how long a first event waits for others to come: it bounds inserts to ten a second, and so the parts that
	// ClickHouse has to merge. While more events are known to wait in the log, it is lingerBehind, which fills batches.
	linger       = 100 * time.Millisecond
	lingerBehind = time.Second

	retryMin = 100 * time.Millisecond
	retryMax = 10 * time.Second
	// attemptTime bounds one insert, callTime one look-up, checkpoint or dead letter.
	attemptTime = time.Minute
	callTime    = 10 * time.Second
	lagEvery    = 2 * time.Second
)

// Sink takes rows, again where it has them. It keeps nothing of rows.
type Sink interface {
	Insert(ctx context.Context, rows *clickhouse.Block) error
	// Clear removes every row.
	Clear(ctx context.Context) error
	// Late says that a row of a sandbox comes behind the checkpoint.
	Late(ctx context.Context, tenant string, sandbox uuid.UUID) error
}

// Config of a projector.
type Config struct {
	JS         jetstream.JetStream
	Sink       Sink
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Tracer makes a span of each batch; nil makes none.
	Tracer trace.TracerProvider
}

// Projector reads the log from the checkpoint topology.CheckpointUsage on. Of several one works and the others stand by.
type Projector struct {
	js      jetstream.JetStream
	kv      jetstream.KeyValue
	sink    Sink
	log     *slog.Logger
	metrics *metrics
	tracer  trace.Tracer
	// traced: spans are made.
	traced bool
	owners *owners
	words  *words
	// id tells this projector's checkpoints from those of others.
	id   string
	done progress
}

// New looks up the stream of events and the bucket of checkpoints, which must exist.
func New(ctx context.Context, c Config) (*Projector, error) {
	p := &Projector{js: c.JS, sink: c.Sink, log: c.Log, traced: c.Tracer != nil, id: ids.New(), words: newWords()}
	if c.Tracer == nil {
		c.Tracer = noop.NewTracerProvider()
	}
	p.tracer = c.Tracer.Tracer("github.com/sandtrail/sandtrail/services/usage")
	var err error
	if p.metrics, err = newMetrics(c.Registerer); err != nil {
		return nil, err
	}
	if _, err = c.JS.Stream(ctx, topology.StreamEvents); err != nil {
		return nil, fmt.Errorf("look up the stream of events: %w", err)
	}
	if p.kv, err = c.JS.KeyValue(ctx, topology.BucketCheckpoint); err != nil {
		return nil, fmt.Errorf("look up the bucket of checkpoints: %w", err)
	}
	p.owners = newOwners(c.JS)
	return p, nil
}

// Run projects until ctx ends, and returns nil then, or until the connection is closed: nats.ErrConnectionClosed. What is in
// work then is left to whoever reads on from the checkpoint. Meanwhile it takes redrives of events that were set aside, as every
// projector does, at work or standing by.
func (p *Projector) Run(ctx context.Context) error {
	stop, err := dlq.Answer(ctx, p.js.Conn(), topology.CheckpointUsage, p.log, p.redrive)
	if err != nil {
		return err
	}
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.project(ctx) })
	g.Go(func() error {
		for ctx.Err() == nil {
			p.measureLag(ctx)
			_ = pause.For(ctx, lagEvery)
		}
		return nil
	})
	return g.Wait()
}

// project runs one session after the other.
func (p *Projector) project(ctx context.Context) error {
	for failures := 0; ctx.Err() == nil; {
		err := p.session(ctx, func() { failures = 0 })
		switch {
		case ctx.Err() != nil:
			return nil
		case p.closed():
			return fmt.Errorf("read events: %w", nats.ErrConnectionClosed)
		case errors.Is(err, errOvertaken):
			p.log.Info("another projector is at work, standing by")
			p.standBy(ctx)
			continue
		}
		failures++
		// A gap comes with each restart of a server: nothing to report.
		if failures > 1 || !errors.Is(err, feed.ErrGap) {
			p.log.Warn("cannot read events, trying again", "error", err)
		}
		backOff(ctx, failures)
	}
	return nil
}

// backOff waits after the n-th failure in a row: doubling from 100 ms to 10 s, with jitter.
func backOff(ctx context.Context, n int) {
	d := min(retryMin<<min(n-1, 10), retryMax)
	_ = pause.For(ctx, d/2+rand.N(d))
}

// closed reports whether the connection to the log is gone for good.
func (p *Projector) closed() bool { return p.js.Conn().Status() == nats.CLOSED }
