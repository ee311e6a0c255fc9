package worker

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/logclock"
	"github.com/sandtrail/sandtrail/libs/telemetry"
)

// ackTimeout bounds the wait for the server's word that it has an acknowledgement or a dead letter.
const ackTimeout = 5 * time.Second

// identity names a stored message, also across a stream that was made anew and counts from 1 again.
type identity struct {
	seq  uint64
	time int64
}

// delivery is a message that is held: it runs, or waits for those of its key before it.
type delivery struct {
	Message
	id  identity
	key string
	// msg is the newest delivery, the one that the server takes an answer for. Guarded by runner.mu.
	msg jetstream.Msg
}

// verdict is what was decided on a message whose acknowledgement may have been lost.
type verdict struct {
	dead   bool
	reason string
}

type runner struct {
	cfg     Config
	js      jetstream.JetStream
	handle  Handler
	metrics *metrics
	// ctx ends when Run should; work is the handlers'.
	ctx, work context.Context
	// lanes holds a token for each handler that runs, space one for each message that is held or asked for.
	lanes, space chan struct{}
	running      sync.WaitGroup

	mu      sync.Mutex
	ackWait time.Duration
	// queues has the messages of each key in order; the first one runs or waits for a lane.
	queues map[string][]*delivery
	flying map[identity]*delivery
	// settled, confirmed and panics outlive a delivery. A server that restarts may forget an acknowledgement that it confirmed, so
	// those are remembered too; apart, so that they do not push out what is not confirmed yet.
	settled   *memory[verdict]
	confirmed *memory[verdict]
	panics    *memory[int]

	clock struct {
		sync.Mutex
		log  *logclock.Clock
		read time.Time
	}
}

// dispatch takes a message that has space reserved and gives the space back when it is done.
func (r *runner) dispatch(m jetstream.Msg) {
	meta, err := m.Metadata()
	if err != nil {
		// Not a delivery of a stream, so nobody waits for an answer.
		<-r.space
		return
	}
	d := &delivery{
		Message: Message{
			Subject: m.Subject(), Data: m.Data(), Header: m.Headers(), Seq: meta.Sequence.Stream,
			Attempt: int(meta.NumDelivered), Time: meta.Timestamp, //nolint:gosec // a count of deliveries
		},
		id:  identity{meta.Sequence.Stream, meta.Timestamp.UnixNano()},
		msg: m,
	}
	d.key = r.cfg.Key(d.Message)
	r.mu.Lock()
	if held, ok := r.flying[d.id]; ok {
		// Heartbeats were lost, so the server thinks that nobody works on it. It must not run a second time beside the first.
		held.msg = m
		r.mu.Unlock()
		r.metrics.done("duplicate")
		<-r.space
		return
	}
	r.flying[d.id] = d
	r.queues[d.key] = append(r.queues[d.key], d)
	alone := len(r.queues[d.key]) == 1
	r.mu.Unlock()
	r.metrics.inFlight.Inc()
	if alone {
		r.running.Go(func() { r.drive(d) })
	}
}

// drive runs the messages of a key, from d on, until none waits.
func (r *runner) drive(d *delivery) {
	for d != nil {
		r.turn(d)
		d = r.next(d)
	}
}

// turn waits for a lane and runs one message; when Run ends first, the message goes back.
func (r *runner) turn(d *delivery) {
	select {
	case r.lanes <- struct{}{}:
		defer func() { <-r.lanes }()
	case <-r.ctx.Done():
	}
	if r.ctx.Err() != nil {
		r.giveBack(d)
		return
	}
	r.process(d)
}

// next forgets a message that is done and returns the one behind it.
func (r *runner) next(d *delivery) *delivery {
	r.mu.Lock()
	delete(r.flying, d.id)
	var following *delivery
	if queue := r.queues[d.key][1:]; len(queue) > 0 {
		r.queues[d.key] = queue
		following = queue[0]
	} else {
		delete(r.queues, d.key)
	}
	r.mu.Unlock()
	r.metrics.inFlight.Dec()
	<-r.space
	return following
}

func (r *runner) newest(d *delivery) jetstream.Msg {
	r.mu.Lock()
	defer r.mu.Unlock()
	return d.msg
}

// process decides what becomes of a message.
func (r *runner) process(d *delivery) {
	for _, known := range []*memory[verdict]{r.settled, r.confirmed} {
		if v, ok := known.get(d.id); ok {
			r.settle(d, v)
			return
		}
	}
	if r.cfg.MaxAttempts > 0 && d.Attempt > r.cfg.MaxAttempts {
		// Its attempts ended without an answer: each one brought the process down.
		r.bury(d, dlq.ReasonAttempts, errUnended)
		return
	}
	start := time.Now()
	err := r.call(d)
	r.metrics.seconds.Observe(time.Since(start).Seconds())
	var (
		bad     *poison
		crashed *dlq.PanicError
	)
	switch {
	case err == nil:
		r.settle(d, verdict{})
	case r.ctx.Err() != nil:
		// What fails while everything ends says nothing about the message.
		r.giveBack(d)
	case errors.As(err, &bad):
		r.bury(d, dlq.ReasonPoison, err)
	case errors.As(err, &crashed) && r.panics.add(d.id, 1, sum) >= MaxPanics:
		r.bury(d, dlq.ReasonPanic, err)
	case r.cfg.MaxAttempts > 0 && d.Attempt >= r.cfg.MaxAttempts, r.tooOld(d):
		r.bury(d, dlq.ReasonAttempts, err)
	default:
		r.retry(d, err)
	}
}

// tooOld goes by the log's clock, which has stamped the message: by that of a host which is a day ahead all that waits would be dead.
// As long as the log does not tell the time nothing is too old.
func (r *runner) tooOld(d *delivery) bool {
	if r.cfg.MaxAge <= 0 {
		return false
	}
	r.clock.Lock()
	defer r.clock.Unlock()
	var err error
	switch {
	case r.clock.log == nil:
		r.clock.log, err = logclock.New(r.work, r.js)
	case time.Since(r.clock.read) > clockAge:
		err = r.clock.log.Sync(r.work)
	default:
		return r.clock.log.Now().Sub(d.Time) >= r.cfg.MaxAge
	}
	if err != nil {
		r.cfg.Log.WarnContext(r.work, "cannot tell how old a message is", append(r.attrs(d), "error", err)...)
		r.clock.log = nil
		return false
	}
	r.clock.read = time.Now()
	return r.clock.log.Now().Sub(d.Time) >= r.cfg.MaxAge
}

// clockAge is how long a reading of the log's clock is gone by.
const clockAge = time.Minute

func sum(a, b int) int { return a + b }

// errUnended is why a message is dead whose handlers never answered.
var errUnended = fault.New(fault.Internal, fault.ReasonInternal, "no attempt came to an end: each one brought the process down, or took longer than the ack wait without a heartbeat")

func (r *runner) call(d *delivery) (err error) {
	ctx := telemetry.Extract(r.work, d.Header)
	defer func() {
		if p := recover(); p != nil {
			err = dlq.Caught(p)
			r.cfg.Log.ErrorContext(ctx, "handler panicked", append(r.attrs(d), "stack", string(debug.Stack()))...)
		}
	}()
	return r.handle(ctx, d.Message)
}

// settle tells the server that a message is done or dead and remembers it until the server has it for sure.
func (r *runner) settle(d *delivery, v verdict) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), ackTimeout)
	defer cancel()
	r.settled.put(d.id, v)
	r.panics.drop(d.id)
	if v.dead {
		// There is no confirmed way to say it; should it be lost, the next delivery says it again.
		if err := r.newest(d).TermWithReason(v.reason); err != nil {
			r.cfg.Log.WarnContext(ctx, "cannot end a dead message", append(r.attrs(d), "error", err)...)
		}
		return
	}
	if err := r.newest(d).DoubleAck(ctx); err != nil {
		r.cfg.Log.WarnContext(ctx, "acknowledgement not confirmed", append(r.attrs(d), "error", err)...)
		r.metrics.done("unconfirmed")
		return
	}
	r.confirmed.put(d.id, v)
	r.settled.drop(d.id)
	r.metrics.done("ack")
}

func (r *runner) giveBack(d *delivery) {
	if err := r.newest(d).Nak(); err != nil {
		r.cfg.Log.WarnContext(r.ctx, "cannot give a message back", append(r.attrs(d), "error", err)...)
	}
	r.metrics.done("returned")
}

func (r *runner) retry(d *delivery, err error) {
	delay := r.delay(d.Attempt, err)
	if sampled(d.Attempt) {
		ctx := telemetry.Extract(r.ctx, d.Header)
		level, asked := slog.LevelWarn, new(retryError)
		if errors.As(err, &asked) {
			// The handler wants to see the message again later: nothing has failed.
			level = slog.LevelInfo
		}
		r.cfg.Log.Log(ctx, level, "a message comes again", append(r.attrs(d), "in", delay.String(), "error", err)...)
	}
	if err := r.newest(d).NakWithDelay(delay); err != nil {
		r.cfg.Log.WarnContext(r.ctx, "cannot ask for a retry", append(r.attrs(d), "error", err)...)
	}
	r.metrics.done("retry")
}

// delay is what the error asks for, or the backoff of the attempt with a random fifth.
func (r *runner) delay(attempt int, err error) time.Duration {
	var after *retryError
	if errors.As(err, &after) {
		return min(max(after.delay, 0), maxDelay)
	}
	var f *fault.Error
	if errors.As(err, &f) && f.RetryAfter > 0 {
		return min(f.RetryAfter, maxDelay)
	}
	d := min(r.cfg.Backoff[min(max(attempt, 1), len(r.cfg.Backoff))-1], maxDelay)
	if d <= 0 {
		return 0
	}
	return d - d/5 + rand.N(2*d/5+1) //nolint:gosec // spreads load, guards nothing
}
