package webhooks

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/webhook"
)

const (
	// lanes is how many events an endpoint is sent at the same time, each of another aggregate.
	lanes = 8
	// maxHeld bounds the events that wait for an endpoint in memory, maxWindow those behind the first one that is not done: so far an
	// endpoint that refuses one event gets ahead of it.
	maxHeld   = 256
	maxWindow = 1024
	pageBytes = 1 << 20
	// look is how often the log is looked at without news, saveEvery how often progress is stored at most.
	look      = 5 * time.Second
	saveEvery = time.Second
	callTime  = 10 * time.Second
	lastTime  = 2 * time.Second
)

// runner sends the events that one endpoint wants: those of an aggregate in order, each until it is delivered or set aside.
type runner struct {
	m *Manager
	// point is the endpoint as it was known last; changed and wake say that there is a newer state, or something new in the log.
	point         atomic.Pointer[webhook.Endpoint]
	changed, wake chan struct{}
	results       chan result
	tests         sync.WaitGroup

	p        progress
	revision uint64
	window   *window
	// queues are the events that wait, by aggregate; held is how many, flying how many are on their way.
	queues       map[string]*queue
	held, flying int
	// atEnd: nothing more was there at the last look.
	atEnd bool
	// dirty: progress is not stored; saved is when it was last. tested is the sequence of the last test that was sent.
	dirty  bool
	saved  time.Time
	tested uint64
}

// queue is one aggregate's events, the first one being sent or waiting for its next attempt.
type queue struct {
	events []envelope.Recorded
	busy   bool
	due    time.Time
}

// result is what came of an attempt; dead: it was the last one, and the event was set aside.
type result struct {
	subject string
	seq     uint64
	answer  answer
	dead    bool
}

func newRunner(m *Manager, p webhook.Endpoint) *runner {
	r := &runner{m: m, changed: make(chan struct{}, 1), wake: make(chan struct{}, 1), results: make(chan result, lanes), queues: map[string]*queue{}}
	r.point.Store(&p)
	return r
}

// set tells of a newer state of the endpoint.
func (r *runner) set(p webhook.Endpoint) {
	r.point.Store(&p)
	poke(r.changed)
}

// run sends until ctx ends, the endpoint is not to be sent anything any more, or another process has stored progress: errOvertaken.
func (r *runner) run(ctx context.Context) error {
	if err := r.resume(ctx); err != nil {
		return err
	}
	live, err := r.m.nc.Subscribe(subject.Live(subject.OfTenant(r.point.Load().Tenant)), func(*nats.Msg) { poke(r.wake) })
	if err != nil {
		return err
	}
	defer func() { _ = live.Unsubscribe() }() // the connection is closing if this fails
	stop, err := r.redrives(ctx)
	if err != nil {
		return err
	}
	defer stop()
	// What is on its way when ctx ends may still arrive, and be known to have.
	sending, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		cancel()
		for ; r.flying > 0; r.flying-- {
			<-r.results
		}
		r.tests.Wait()
	}()
	if err := r.loop(ctx, sending); err != nil {
		return err
	}
	last, stopped := context.WithTimeout(sending, lastTime)
	defer stopped()
	for r.flying > 0 && last.Err() == nil {
		select {
		case x := <-r.results:
			r.take(last, x)
		case <-last.Done():
		}
	}
	return r.save(sending)
}

func (r *runner) loop(ctx, sending context.Context) error {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		if !r.point.Load().Active() || ctx.Err() != nil {
			return nil
		}
		if err := r.turn(ctx, sending); err != nil {
			return err
		}
		timer := time.NewTimer(r.next())
		select {
		case <-r.wake:
			r.atEnd = false
		case <-tick.C:
			r.atEnd = false
		case x := <-r.results:
			r.take(ctx, x)
		case <-timer.C:
		case <-r.changed:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// turn does what can be done now.
func (r *runner) turn(ctx, sending context.Context) error {
	if r.point.Load().ReplaySeq > r.p.Replayed {
		// What is on its way comes to its end first, so that nothing overtakes what is sent again.
		if r.flying > 0 {
			return nil
		}
		r.rewind()
	}
	r.test(sending)
	if err := r.fill(ctx); err != nil {
		r.m.log.WarnContext(ctx, "events of a webhook cannot be read, trying again", "webhook", r.point.Load().ID, "error", err)
	}
	r.start(sending)
	if !r.dirty || time.Since(r.saved) < saveEvery {
		return nil
	}
	return r.save(ctx)
}

// rewind begins anew where somebody asked for a replay.
func (r *runner) rewind() {
	r.p.After, r.p.Done, r.p.Attempts = max(r.point.Load().ReplayFrom, 1)-1, nil, nil
	r.p.Replayed = r.point.Load().ReplaySeq
	r.window, r.queues, r.held = windowOf(r.p), map[string]*queue{}, 0
	r.atEnd, r.dirty, r.saved = false, true, time.Time{}
}

// fill reads what has room.
func (r *runner) fill(ctx context.Context) error {
	for !r.atEnd && r.held < maxHeld && r.window.size() < maxWindow {
		ctx, cancel := context.WithTimeout(ctx, callTime)
		messages, pending, err := directget.Page(ctx, r.m.js, topology.StreamEvents, r.filter(), r.window.read+1, maxHeld-r.held, pageBytes)
		cancel()
		if err != nil {
			return err
		}
		for _, m := range messages {
			r.window.pass(m.Seq)
			r.queue(m)
		}
		r.dirty = r.dirty || len(messages) > 0
		r.atEnd = pending == 0
	}
	return nil
}

// filter is the one filter of subjects that holds all that is wanted.
func (r *runner) filter() string {
	p := r.point.Load()
	if all := p.Filter.Subjects(); len(all) == 1 {
		return all[0]
	}
	return subject.OfTenant(p.Tenant)
}

func (r *runner) queue(m directget.Message) {
	agg, err := subject.ParseEvent(m.Subject)
	if err != nil || !r.point.Load().Wants(agg, m.Header.Get(envelope.HeaderType)) {
		return
	}
	e, err := envelope.Decode(m.Subject, m.Seq, m.Header, m.Data)
	if err != nil || !r.window.take(m.Seq) {
		return // what is no event is nothing that an endpoint could take
	}
	q := r.queues[m.Subject]
	if q == nil {
		q = &queue{}
		r.queues[m.Subject] = q
	}
	q.events = append(q.events, e)
	r.held++
}

// start sends what is due, as long as there is a lane.
func (r *runner) start(ctx context.Context) {
	if r.point.Load().ReplaySeq > r.p.Replayed {
		return
	}
	now := time.Now()
	for _, q := range r.queues {
		if r.flying == lanes {
			return
		}
		if q.busy || q.due.After(now) {
			continue
		}
		q.busy = true
		r.flying++
		point, e, failures := *r.point.Load(), q.events[0], r.window.attempts[q.events[0].Seq]
		go func() { r.results <- r.m.attempt(ctx, point, e, failures) }()
	}
}

// take puts down what came of an attempt.
func (r *runner) take(ctx context.Context, x result) {
	r.flying--
	q := r.queues[x.subject]
	q.busy = false
	switch {
	case x.answer.err == nil || x.dead:
		r.finish(q, x)
	case ctx.Err() != nil:
		// It was broken off by us.
	case x.answer.gone():
		r.m.disable(ctx, *r.point.Load(), "gone")
		q.due = time.Now().Add(look)
	default:
		q.due = time.Now().Add(r.m.cfg.Backoff.pause(r.window.fail(x.seq), x.answer.wait))
		r.dirty = true
		r.m.metrics.failed.Inc()
	}
}

func (r *runner) finish(q *queue, x result) {
	r.window.finish(x.seq)
	q.events, q.due = q.events[1:], time.Time{}
	r.held--
	if len(q.events) == 0 {
		delete(r.queues, x.subject)
	}
	r.dirty = true
	if x.answer.err == nil {
		r.m.metrics.delivered.Inc()
	}
}

// next is how long there is nothing to do but for news.
func (r *runner) next() time.Duration {
	d := look
	if r.dirty {
		d = min(d, saveEvery)
	}
	if r.flying == lanes || r.point.Load().ReplaySeq > r.p.Replayed {
		return d
	}
	for _, q := range r.queues {
		if !q.busy {
			d = min(d, max(time.Until(q.due), time.Millisecond))
		}
	}
	return d
}

// test sends the test that was asked for last, once in this process, and again in the next one where nobody put down what came of it.
func (r *runner) test(ctx context.Context) {
	p := *r.point.Load()
	if p.TestID == "" || p.Tested != nil || p.TestSeq == r.tested {
		return
	}
	r.tested = p.TestSeq
	r.tests.Go(func() { r.m.test(ctx, p) })
}

func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
