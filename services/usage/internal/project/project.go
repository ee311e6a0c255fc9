// Package project turns the facts of the log into rows of usage.
//
// Order of things: insert, then acknowledge. A projector that dies in between, or a log that is read again, makes the same rows
// again, and a row that stands already is replaced by itself. So every total is the same however often it happens. When
// ClickHouse is down nothing is acknowledged: the consumer lags, two batches wait here, and nothing is dropped.
package project

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/errgroup"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

// Bounds.
const (
	// MaxBatch is how many events are projected together at most.
	MaxBatch = 5_000
	// linger is how long a first event waits for others to come: it bounds inserts to ten a second, and so the parts that
	// ClickHouse has to merge.
	linger = 100 * time.Millisecond
	// idle is how long one request for a first event stands.
	idle = 5 * time.Second

	retryMin = 100 * time.Millisecond
	retryMax = 10 * time.Second
	// attemptTime bounds one insert.
	attemptTime = time.Minute
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
	// last is the time of the event that was read last, in Unix nanoseconds.
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

// Run projects until ctx ends, and returns nil then, or until the connection is closed. A batch in work is finished or handed
// back. The next batch is fetched while one is inserted; no more than these two are held.
func (p *Projector) Run(ctx context.Context) error {
	batches := make(chan batch)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(batches)
		return p.fetchAll(ctx, batches)
	})
	g.Go(func() error {
		for b := range batches {
			p.project(ctx, b)
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

// batch is messages that are kept ours by heartbeats until release.
type batch struct {
	messages []jetstream.Msg
	release  context.CancelFunc
}

// handBack gives the messages back at once instead of after the acknowledgement's time.
func (b batch) handBack() {
	b.release()
	for _, m := range b.messages {
		_ = m.Nak()
	}
}

func (p *Projector) fetchAll(ctx context.Context, batches chan<- batch) error {
	failures, full := 0, false
	for ctx.Err() == nil {
		messages, err := p.fetch(ctx, full)
		if errors.Is(err, nats.ErrConnectionClosed) {
			return fmt.Errorf("fetch events: %w", err)
		}
		if err != nil {
			failures++
			p.log.Warn("cannot fetch events", "error", err)
			pause(ctx, failures)
			continue
		}
		failures, full = 0, len(messages) == MaxBatch
		if len(messages) == 0 {
			continue
		}
		beat, release := context.WithCancel(ctx)
		go heartbeat(beat, messages, p.ackWait/3)
		b := batch{messages, release}
		select {
		case batches <- b:
		case <-ctx.Done():
			b.handBack()
		}
	}
	return nil
}

// fetch waits for a first event and takes what has come up to linger later. Behind a full batch it does not linger.
func (p *Projector) fetch(ctx context.Context, full bool) ([]jetstream.Msg, error) {
	var batch []jetstream.Msg
	if !full {
		wait, cancel := context.WithTimeout(ctx, idle)
		defer cancel()
		first, err := p.consumer.Next(jetstream.FetchContext(wait))
		switch {
		case err == nil:
			batch = append(batch, first)
		case errors.Is(err, nats.ErrTimeout), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
			return nil, nil
		default:
			return nil, err
		}
		sleep(ctx, linger)
	}
	more, err := p.consumer.FetchNoWait(MaxBatch - len(batch))
	if err != nil {
		// What is in hand is worth projecting; the error comes again at the next request.
		if len(batch) > 0 {
			return batch, nil
		}
		return nil, err
	}
	for m := range more.Messages() {
		batch = append(batch, m)
	}
	return batch, nil
}

// project sees a batch through: rows, insert, acknowledgement. It tries again until it succeeds or ctx ends.
func (p *Projector) project(ctx context.Context, b batch) {
	defer b.release()
	ctx, span := p.span(ctx, b.messages)
	defer span.End()
	for attempt := 1; ; attempt++ {
		done, err := p.attempt(ctx, b.messages)
		if err == nil {
			p.acknowledge(ctx, done)
			return
		}
		span.AddEvent("attempt failed")
		if ctx.Err() != nil {
			b.handBack()
			return
		}
		p.metrics.retries.Inc()
		p.log.Warn("cannot project a batch, trying again", "events", len(b.messages), "attempt", attempt, "error", err)
		pause(ctx, attempt)
	}
}

// attempt maps and inserts a batch and returns the messages to acknowledge: all but those sent to the dead letters.
func (p *Projector) attempt(ctx context.Context, messages []jetstream.Msg) ([]jetstream.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	done := make([]jetstream.Msg, 0, len(messages))
	rows := make([]clickhouse.Row, 0, len(messages))
	place := make(map[uuid.UUID]int, len(messages))
	for _, m := range messages {
		row, ok, err := p.read(ctx, m)
		var bad *unusable
		if errors.As(err, &bad) {
			if err := p.bury(ctx, m, bad); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		done = append(done, m)
		if !ok {
			continue
		}
		at, seen := place[row.ID]
		switch {
		case !seen:
			place[row.ID] = len(rows)
			rows = append(rows, row)
		case rows[at].Seq < row.Seq:
			rows[at] = row
		}
	}
	start := time.Now()
	if err := p.sink.Insert(ctx, p.token(rows), rows); err != nil {
		return nil, err
	}
	if len(rows) > 0 {
		p.metrics.insert.Observe(time.Since(start).Seconds())
		p.metrics.rows.Add(float64(len(rows)))
	}
	return done, nil
}

// read turns a message into a row; ok is false where it makes none. *unusable: it never will.
func (p *Projector) read(ctx context.Context, m jetstream.Msg) (row clickhouse.Row, ok bool, err error) {
	meta, err := m.Metadata()
	if err != nil {
		return row, false, &unusable{err}
	}
	agg, err := subject.ParseEvent(m.Subject())
	if err != nil {
		return row, false, &unusable{err}
	}
	e, err := envelope.Decode(m.Subject(), meta.Sequence.Stream, m.Headers(), m.Data())
	if err != nil {
		return row, false, &unusable{err}
	}
	p.last.Store(e.Time.UnixNano())
	if e.Body == nil {
		p.metrics.skipped.WithLabelValues("unknown").Inc()
		return row, false, nil
	}
	p.owners.see(e)
	if !costs(e) {
		p.metrics.skipped.WithLabelValues("free").Inc()
		return row, false, nil
	}
	owner, err := p.owners.of(ctx, agg)
	if err != nil {
		return row, false, err
	}
	if row, err = Map(e, agg, owner); err != nil {
		return row, false, &unusable{err}
	}
	return row, true, nil
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

// acknowledge tells the log that the messages are done. The server handles them in order, so the answer to the last one
// confirms all. One that is lost comes again and makes the same row.
func (p *Projector) acknowledge(ctx context.Context, done []jetstream.Msg) {
	if len(done) == 0 {
		return
	}
	last := len(done) - 1
	for _, m := range done[:last] {
		if err := m.Ack(); err != nil {
			p.log.Warn("cannot acknowledge, the events will come again", "error", err)
			return
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := done[last].DoubleAck(ctx); err != nil {
		p.log.Warn("acknowledgement not confirmed, the events may come again", "error", err)
	}
}

// heartbeat keeps the messages ours for as long as the batch takes.
func heartbeat(ctx context.Context, batch []jetstream.Msg, every time.Duration) {
	t := time.NewTicker(max(every, 50*time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			for _, m := range batch {
				_ = m.InProgress()
			}
		}
	}
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
