// Package worker runs a handler on the messages of a durable consumer: several keys at the same time, the messages of one key
// one after another, each until it is done, retried or dead.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// Defaults and bounds.
const (
	DefaultLanes = 16
	// MaxLanes bounds Config.Lanes.
	MaxLanes = 1024
	// DefaultMaxAttempts is with DefaultBackoff about two and a half hours.
	DefaultMaxAttempts = 20
	// DefaultDrain is how long handlers may go on after Run was told to end.
	DefaultDrain = 10 * time.Second
	// MaxPanics is with how many panics of its handler a message is dead.
	MaxPanics = dlq.MaxPanics

	// held is how many messages there may be for each lane, running or waiting for the one before them.
	held = 2
	// stuck is how long Run waits for handlers whose context has ended.
	stuck = 10 * time.Second
	// maxDelay bounds the delay of a retry.
	maxDelay = time.Hour
)

// DefaultBackoff is the delay before the second attempt, the third and so on; the last one stays.
func DefaultBackoff() []time.Duration {
	return []time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute}
}

// Message is what a handler gets.
type Message struct {
	Subject string
	Data    []byte
	Header  nats.Header
	// Seq is the stream sequence.
	Seq uint64
	// Attempt is 1 for the first delivery. Deliveries that a crash or a shutdown ended count too.
	Attempt int
	// Time is when the message was stored.
	Time time.Time
}

// Handler does the work of a message. It must be idempotent: a message comes again when its acknowledgement was lost. Its
// context carries the message's trace and correlation id and ends when Run has been told to end and Config.Drain is over.
type Handler func(ctx context.Context, m Message) error

// Config of a run.
type Config struct {
	// Service is who runs, a subject token: it is in metrics and in the subject of dead letters.
	Service string
	// Stream and Consumer name a durable pull consumer with explicit acknowledgement. It is never made here.
	Stream   string
	Consumer string
	// Lanes is how many keys run at the same time, by default DefaultLanes. Twice as many messages are held at most; when that
	// many are, no more are pulled until one is done.
	Lanes int
	// Key groups messages: those with one key run one after another in the order of the stream. Only a message that is retried
	// falls behind. By default the subject.
	Key func(Message) string
	// Log must not be nil where retries should be seen.
	Log *slog.Logger
	// Registerer gets the metrics; nil keeps them nowhere.
	Registerer prometheus.Registerer
	// Backoff by default DefaultBackoff. Up to a fifth is taken off or added at random.
	Backoff []time.Duration
	// MaxAttempts by default DefaultMaxAttempts; a message that fails that often is dead. Negative: retried for ever.
	MaxAttempts int
	// MaxAge is how old a message may be when an attempt fails; then it is dead, however few attempts it had. By default an hour less
	// than the stream keeps commands, which would otherwise be gone without a letter, and no bound for other streams.
	MaxAge time.Duration
	// Drain by default DefaultDrain; negative ends handlers at once.
	Drain time.Duration
}

func (c Config) check() (Config, error) {
	if c.Service == "" || c.Stream == "" || c.Consumer == "" {
		return c, errors.New("worker needs a service, a stream and a consumer")
	}
	if c.Lanes == 0 {
		c.Lanes = DefaultLanes
	}
	if c.Lanes < 1 || c.Lanes > MaxLanes {
		return c, fmt.Errorf("worker has %d lanes; it can have 1 to %d", c.Lanes, MaxLanes)
	}
	if c.Key == nil {
		c.Key = func(m Message) string { return m.Subject }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Log = c.Log.With("stream", c.Stream, "consumer", c.Consumer)
	if len(c.Backoff) == 0 {
		c.Backoff = DefaultBackoff()
	}
	if c.MaxAttempts == 0 {
		c.MaxAttempts = DefaultMaxAttempts
	}
	if c.MaxAge == 0 && c.Stream == topology.StreamCommands {
		c.MaxAge = topology.CommandTTL - time.Hour
	}
	if c.Drain == 0 {
		c.Drain = DefaultDrain
	}
	return c, nil
}

type poison struct{ err error }

func (p *poison) Error() string { return p.err.Error() }
func (p *poison) Unwrap() error { return p.err }

// Poison says that no retry can help: the message is dead at once. nil stays nil.
func Poison(err error) error {
	if err == nil {
		return nil
	}
	return &poison{err}
}

type retryError struct {
	err   error
	delay time.Duration
}

func (r *retryError) Error() string { return r.err.Error() }
func (r *retryError) Unwrap() error { return r.err }

// RetryAfter says when to try again, at most in an hour. nil stays nil.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &retryError{err: err, delay: d}
}

// Run hands messages to h until ctx ends, then it gives back what waits, lets running handlers end and returns nil. Handlers
// whose context has ended and that do not return make it return an error. A handler that returns nil has its message
// acknowledged, and Run makes sure that the server knows; a panic is an error. While ctx has ended no message is dead.
//
// Whoever runs a consumer of the stream of events also takes the redrives of its dead letters, one at a time and beside the lanes.
//
// Servers that go away and consumers that are missing are waited for. A configuration that cannot work and a connection that
// was closed are errors.
func Run(ctx context.Context, js jetstream.JetStream, cfg Config, h Handler) error {
	cfg, err := cfg.check()
	if err != nil {
		return err
	}
	m, err := newMetrics(cfg.Registerer, cfg.Service, cfg.Consumer)
	if err != nil {
		return err
	}
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	r := &runner{
		cfg: cfg, js: js, handle: h, metrics: m, ctx: ctx, work: work,
		lanes: make(chan struct{}, cfg.Lanes), space: make(chan struct{}, cfg.Lanes*held),
		queues: map[string][]*delivery{}, flying: map[identity]*delivery{},
		settled: newMemory[verdict](), confirmed: newMemory[verdict](), panics: newMemory[int](), ackWait: defaultAckWait,
	}
	beats := make(chan struct{})
	go func() {
		defer close(beats)
		r.heartbeats()
	}()
	stop, err := r.redrives()
	if err == nil {
		err = r.pull()
		stop()
	}
	if e := r.drain(cancel); err == nil {
		err = e
	}
	cancel()
	<-beats
	return err
}

// drain waits for the handlers. Those that wait for a lane give their messages back, because r.ctx has ended.
func (r *runner) drain(cancel context.CancelFunc) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.running.Wait()
	}()
	if r.cfg.Drain > 0 {
		t := time.NewTimer(r.cfg.Drain)
		defer t.Stop()
		select {
		case <-done:
			return r.flush()
		case <-t.C:
		}
	}
	cancel()
	t := time.NewTimer(stuck)
	defer t.Stop()
	select {
	case <-done:
		return r.flush()
	case <-t.C:
		return fmt.Errorf("handlers of %s go on %s after their context ended", r.cfg.Consumer, stuck)
	}
}

// flush makes sure that what was given back has reached the server, if there is one.
func (r *runner) flush() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), 2*time.Second)
	defer cancel()
	if err := r.js.Conn().FlushWithContext(ctx); err != nil {
		r.cfg.Log.WarnContext(ctx, "what was given back may come again only after the ack wait", "error", err)
	}
	return nil
}
