// Package webhooks sends events to the endpoints that tenants have named: at least once, those of an aggregate in order, signed, each
// until it is taken or has failed too often.
package webhooks

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandtrail/sandtrail/libs/cursor"
	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/seal"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/webhook"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

const (
	actor          = "service:gc"
	service        = "gc"
	defaultTimeout = 15 * time.Second
)

// Config of a manager.
type Config struct {
	// Key opens the secrets of endpoints.
	Key *seal.Key
	// Guard says where messages may go.
	Guard webhook.Guard
	// Timeout is how long an endpoint may take to answer, 15 s unless set.
	Timeout time.Duration
	// Backoff by default DefaultBackoff.
	Backoff Backoff
	// Now is the clock of signatures and of secrets' ends.
	Now func() time.Time
}

// Manager sends to every endpoint that there is.
type Manager struct {
	cfg     Config
	nc      *nats.Conn
	js      jetstream.JetStream
	kv      jetstream.KeyValue
	events  eventlog.Log
	log     *slog.Logger
	metrics *metrics
	sender  *sender
}

type metrics struct {
	delivered, failed, dead prometheus.Counter
	endpoints               prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	messages, err := telemetry.Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sandtrail_webhook_messages_total", Help: "Messages to webhooks by what came of an attempt: delivered, failed or dead (failed for the last time).",
	}, []string{"result"}))
	if err != nil {
		return nil, err
	}
	endpoints, err := telemetry.Register(reg, prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "sandtrail_webhook_endpoints", Help: "Webhooks that this process sends to.",
	}))
	if err != nil {
		return nil, err
	}
	return &metrics{
		delivered: messages.WithLabelValues("delivered"), failed: messages.WithLabelValues("failed"), dead: messages.WithLabelValues("dead"), endpoints: endpoints,
	}, nil
}

// New is a manager. It opens the bucket of checkpoints, which must exist, with the first Run.
func New(nc *nats.Conn, js jetstream.JetStream, events eventlog.Log, log *slog.Logger, reg prometheus.Registerer, cfg Config) (*Manager, error) {
	m := &Manager{cfg: cfg, nc: nc, js: js, events: events, log: log}
	m.cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	if cfg.Backoff == (Backoff{}) {
		m.cfg.Backoff = DefaultBackoff()
	}
	if cfg.Now == nil {
		m.cfg.Now = time.Now
	}
	m.sender = &sender{
		client: cfg.Guard.Client(m.cfg.Timeout), now: m.cfg.Now,
		open: func(p webhook.Endpoint, s webhook.Sealed) (webhook.Secret, error) {
			return webhook.Unseal(cfg.Key, p.Tenant, p.ID, s.Bytes)
		},
	}
	var err error
	m.metrics, err = newMetrics(reg)
	return m, err
}

// running is a runner and how to end it.
type running struct {
	*runner
	cancel context.CancelFunc
	done   chan error
	// rest is until when it is not started again.
	rest time.Time
}

// Run sends until ctx ends. Several at once would do no harm but send twice: of one endpoint's runners only one goes on.
func (m *Manager) Run(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	live, err := m.nc.Subscribe(subject.Live(subject.AllWebhooks()), func(*nats.Msg) { poke(wake) })
	if err != nil {
		return err
	}
	defer func() { _ = live.Unsubscribe() }() // the connection is closing if this fails
	defer m.sender.client.CloseIdleConnections()
	all := map[string]*running{}
	defer func() {
		for _, r := range all {
			r.cancel()
		}
		for _, r := range all {
			<-r.done //nolint:errcheck // what it ended with was told, or is the end of ctx
		}
		m.metrics.endpoints.Set(0)
	}()
	view := &endpoints{js: m.js, byID: map[string]webhook.Endpoint{}}
	tick := time.NewTicker(look)
	defer tick.Stop()
	ended := make(chan struct{}, 1)
	for {
		if err := m.look(ctx, view); err == nil {
			m.reconcile(ctx, view.byID, all, ended)
		} else if ctx.Err() == nil {
			m.log.WarnContext(ctx, "webhooks cannot be read, trying again", "error", err)
		}
		select {
		case <-wake:
		case <-ended:
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// look reads which endpoints there are.
func (m *Manager) look(ctx context.Context, view *endpoints) (err error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if m.kv == nil {
		if m.kv, err = m.js.KeyValue(ctx, topology.BucketCheckpoint); err != nil {
			m.kv = nil
			return err
		}
	}
	return view.read(ctx)
}

// reconcile starts, ends and tells runners.
func (m *Manager) reconcile(ctx context.Context, points map[string]webhook.Endpoint, all map[string]*running, ended chan<- struct{}) {
	for id, r := range all {
		select {
		case err := <-r.done:
			if err != nil && ctx.Err() == nil {
				m.log.WarnContext(ctx, "a webhook stopped; starting again", "webhook", id, "error", err)
			}
			if time.Now().After(r.rest) || !points[id].Active() {
				delete(all, id)
			} else {
				r.done <- nil // it rests, and is looked at again
			}
		default:
		}
	}
	n := 0
	for id, p := range points {
		r, there := all[id]
		switch {
		case there:
			if r.point.Load().Seq != p.Seq {
				r.set(p)
			}
		case p.Active() && ctx.Err() == nil:
			all[id] = m.start(ctx, p, ended)
		}
		if p.Active() {
			n++
		}
	}
	m.metrics.endpoints.Set(float64(n))
}

func (m *Manager) start(ctx context.Context, p webhook.Endpoint, ended chan<- struct{}) *running {
	ctx, cancel := context.WithCancel(ctx)
	r := &running{runner: newRunner(m, p), cancel: cancel, done: make(chan error, 2), rest: time.Now().Add(time.Second)}
	go func() {
		err := r.run(ctx)
		cancel()
		r.done <- err
		select {
		case ended <- struct{}{}:
		default:
		}
	}()
	return r
}

// attempt makes one attempt, and sets the event aside where it was the last one that failed.
func (m *Manager) attempt(ctx context.Context, p webhook.Endpoint, e envelope.Recorded, failures int) result {
	x := result{subject: e.Subject, seq: e.Seq, answer: m.sender.send(ctx, p, e)}
	if x.answer.err == nil || x.answer.gone() || ctx.Err() != nil || failures+1 < m.cfg.Backoff.Attempts {
		return x
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	err := dlq.Store(ctx, m.js, dlq.Info{
		Service: service, Consumer: topology.ConsumerWebhook(p.ID), Reason: dlq.ReasonAttempts, Attempts: failures + 1,
		Stream: topology.StreamEvents, Seq: e.Seq, Subject: e.Subject, Stored: e.Time, Died: m.cfg.Now(),
	}.Why(x.answer.err), nats.Header{nats.MsgIdHdr: {e.ID}, envelope.HeaderType: {e.Type}, envelope.HeaderCorrelation: {e.Correlation}}, nil)
	if err != nil {
		m.log.WarnContext(ctx, "an event could not be set aside, trying again", "webhook", p.ID, "seq", e.Seq, "error", err)
		return x
	}
	m.log.ErrorContext(ctx, "a webhook did not take an event", "webhook", p.ID, "tenant", p.Tenant, "seq", e.Seq, "attempts", failures+1, "error", x.answer.err)
	m.metrics.dead.Inc()
	x.dead = true
	return x
}

// test sends a test and puts down what came of it.
func (m *Manager) test(ctx context.Context, p webhook.Endpoint) {
	h, err := m.events.Load(ctx, subject.Webhook(p.Tenant, p.ID))
	if err != nil {
		return // the next process does it, or somebody asks again
	}
	for _, e := range h.Events {
		if e.ID != p.TestID {
			continue
		}
		a := m.sender.send(ctx, p, e)
		if ctx.Err() != nil {
			return
		}
		tested := &eventsv1.WebhookTested{
			TestId: p.TestID, Delivered: a.err == nil, Status: uint32(a.status), DurationUs: uint64(a.took.Microseconds()), //nolint:gosec // neither is negative
		}
		if a.err != nil {
			tested.Message = a.err.Error()
		}
		m.decide(ctx, p, ids.Derive("webhook-tested", p.TestID), webhook.Record{Tested: tested})
	}
}

// disable stops an endpoint that wants no more.
func (m *Manager) disable(ctx context.Context, p webhook.Endpoint, reason string) {
	m.decide(ctx, p, ids.New(), webhook.Disable{Reason: reason})
}

func (m *Manager) decide(ctx context.Context, p webhook.Endpoint, command string, c webhook.Command) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	_, err := webhook.Execute(ctx, m.events, p.Tenant, p.ID, command, actor, m.cfg.Now(), c)
	if err != nil {
		m.log.WarnContext(ctx, "what became of a webhook could not be recorded", "webhook", p.ID, "error", err)
	}
}

// endpoints are all endpoints as the log tells them.
type endpoints struct {
	js   jetstream.JetStream
	log  string
	seen uint64
	byID map[string]webhook.Endpoint
}

// read reads on. A log that has lost its end, and another one, is read from the beginning.
func (v *endpoints) read(ctx context.Context) error {
	now, err := cursor.BoundsOf(ctx, v.js)
	if err != nil {
		return err
	}
	if now.Log != v.log || now.Last < v.seen {
		v.log, v.seen = now.Log, 0
		clear(v.byID)
	}
	err = directget.Each(ctx, v.js, topology.StreamEvents, subject.AllWebhooks(), v.seen+1, func(m directget.Message) error {
		v.seen = m.Seq
		agg, err := subject.ParseEvent(m.Subject)
		if err != nil {
			return nil //nolint:nilerr // what is no event says nothing about an endpoint
		}
		e, err := envelope.Decode(m.Subject, m.Seq, m.Header, m.Data)
		if err != nil {
			return nil //nolint:nilerr // as above
		}
		p, there := v.byID[agg.ID]
		if !there {
			p = webhook.Endpoint{Tenant: agg.Tenant, ID: agg.ID}
		}
		if p.Tenant != agg.Tenant {
			return nil // an id belongs to whoever had it first
		}
		v.byID[agg.ID] = p.Evolve(e)
		return nil
	})
	return err
}
