// Package project turns the facts of the log into rows of usage.
//
// Order of things: insert, then acknowledge. A projector that dies in between, or a log that is read again, makes the same rows
// again, and a row that stands already is replaced by itself. So every total is the same however often it happens. When
// ClickHouse is down nothing is acknowledged: the consumer lags, what is held here is bounded, and nothing is dropped.
//
// Four steps work at the same time, each on another batch: receive (pull and decode), gather (find the owner, make rows), insert
// and acknowledge. Each waits for the next, so a slow step slows the pulls.
package project

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/errgroup"

	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

// Bounds. Of a projector's events at most three batches, a window and decoded ones are unacknowledged: 34,256, which is less than
// the consumer allows.
const (
	// MaxBatch and maxBatchBytes are how many events are projected together at most, and their size as stored.
	MaxBatch      = 10_000
	maxBatchBytes = 32 << 20
	// window and windowBytes are what is asked for and not decoded yet.
	window      = 4_000
	windowBytes = 16 << 20
	// decoded is how many events wait to be gathered.
	decoded = 256
	// linger is how long a first event waits for others to come: it bounds inserts to ten a second, and so the parts that
	// ClickHouse has to merge. While more events are known to wait in the log, it is lingerBehind, which fills batches.
	linger       = 100 * time.Millisecond
	lingerBehind = 500 * time.Millisecond

	retryMin = 100 * time.Millisecond
	retryMax = 10 * time.Second
	// attemptTime bounds one insert, lookupTime one look-up of an owner or one dead letter, ackTime the answer to an
	// acknowledgement.
	attemptTime = time.Minute
	lookupTime  = 10 * time.Second
	ackTime     = 5 * time.Second
	lagEvery    = 2 * time.Second
)

// Sink takes rows. A block whose token it has taken already may be dropped.
type Sink interface {
	Insert(ctx context.Context, token string, rows []clickhouse.Row) error
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

// Projector reads the durable consumer topology.ConsumerUsage. Any number of them may run: each event goes to one.
type Projector struct {
	js       jetstream.JetStream
	sink     Sink
	log      *slog.Logger
	metrics  *metrics
	tracer   trace.Tracer
	consumer jetstream.Consumer
	owners   *owners
	// incarnation of the stream: sequences of another one are others.
	incarnation string
	ackWait     time.Duration
	// last is when the event that was read last was stored, in Unix nanoseconds.
	last atomic.Int64
}

// New looks up the stream and its consumer, which must exist.
func New(ctx context.Context, c Config) (*Projector, error) {
	if c.Tracer == nil {
		c.Tracer = noop.NewTracerProvider()
	}
	m, err := newMetrics(c.Registerer)
	if err != nil {
		return nil, err
	}
	s, err := c.JS.Stream(ctx, topology.StreamEvents)
	if err != nil {
		return nil, fmt.Errorf("look up the stream of events: %w", err)
	}
	cons, err := s.Consumer(ctx, topology.ConsumerUsage)
	if err != nil {
		return nil, fmt.Errorf("look up the consumer %s: %w", topology.ConsumerUsage, err)
	}
	return &Projector{
		js: c.JS, sink: c.Sink, log: c.Log, metrics: m, consumer: cons, owners: newOwners(s),
		tracer:      c.Tracer.Tracer("github.com/sandtrail/sandtrail/services/usage"),
		incarnation: s.CachedInfo().Config.Metadata[topology.MetaIncarnation], ackWait: cons.CachedInfo().Config.AckWait,
	}, nil
}

// Run projects until ctx ends, and returns nil then, or until the connection is closed: nats.ErrConnectionClosed. What is in
// work is finished or handed back.
func (p *Projector) Run(ctx context.Context) error {
	items, batches, inserted := make(chan *item, decoded), make(chan *batch), make(chan *batch)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(items)
		return p.receive(ctx, items)
	})
	g.Go(func() error {
		defer close(batches)
		p.gather(ctx, items, batches)
		return nil
	})
	g.Go(func() error {
		defer close(inserted)
		for b := range batches {
			if p.insert(ctx, b) {
				inserted <- b
			}
		}
		return nil
	})
	g.Go(func() error {
		for b := range inserted {
			p.acknowledge(ctx, b)
		}
		return nil
	})
	g.Go(func() error {
		for ctx.Err() == nil {
			p.measureLag(ctx)
			sleep(ctx, lagEvery)
		}
		return nil
	})
	return g.Wait()
}

// measureLag sets the gauges of what waits.
func (p *Projector) measureLag(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	info, err := p.consumer.Info(ctx)
	if err != nil {
		return
	}
	waiting := info.NumPending + uint64(info.NumAckPending)
	p.metrics.pending.Set(float64(waiting))
	behind := 0.0
	if last := p.last.Load(); waiting > 0 && last != 0 {
		behind = time.Since(time.Unix(0, last)).Seconds()
	}
	p.metrics.behind.Set(behind)
}

// pause waits after the n-th failure in a row: doubling from 100 ms to 10 s, with jitter.
func pause(ctx context.Context, n int) {
	d := min(retryMin<<min(n-1, 10), retryMax)
	sleep(ctx, d/2+rand.N(d))
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// closed reports whether the connection to the log is gone for good.
func (p *Projector) closed() bool { return p.js.Conn().Status() == nats.CLOSED }
