package webhooks_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/events"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/seal"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/webhook"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/gc/internal/webhooks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

// message is one that an endpoint got.
type message struct {
	events.CloudEvent
	signature string
	status    int
}

// endpoint is a server that takes messages, and does with them what a test says.
type endpoint struct {
	*httptest.Server
	t      *testing.T
	secret string

	mu sync.Mutex
	// answer gives the status of the n-th message, from 1; 0 breaks the connection. nil answers 204.
	answer func(n int, e events.CloudEvent) int
	// hold is what the server waits for before it answers.
	hold func(r *http.Request)
	// got are the messages that came, ok those that were answered with success.
	got, ok []message
}

func listen(t *testing.T) *endpoint {
	t.Helper()
	p := &endpoint{t: t}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

func (p *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // whoever sent it has died
	}
	m := message{signature: r.Header.Get(webhook.HeaderSignature)}
	if err := json.Unmarshal(body, &m.CloudEvent); err != nil {
		p.t.Errorf("no CloudEvent: %v", err)
	}
	p.mu.Lock()
	secret, hold := p.secret, p.hold
	m.status = http.StatusNoContent
	if p.answer != nil {
		m.status = p.answer(len(p.got)+1, m.CloudEvent)
	}
	p.got = append(p.got, m)
	p.mu.Unlock()
	if err := webhook.Verify(secret, r.Header, body, time.Now()); err != nil {
		p.t.Errorf("message %s: %v", m.ID, err)
	}
	if r.Header.Get(webhook.HeaderID) != m.ID || r.Header.Get("Content-Type") != events.ContentType {
		p.t.Errorf("message %s has the headers %v", m.ID, r.Header)
	}
	if hold != nil {
		hold(r)
	}
	if m.status == 0 {
		panic(http.ErrAbortHandler)
	}
	if m.status/100 == 2 && r.Context().Err() == nil {
		p.set(func() { p.ok = append(p.ok, m) })
	}
	w.WriteHeader(m.status)
}

// taken are the messages that were answered with success.
func (p *endpoint) taken() []message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.ok)
}

func (p *endpoint) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.got)
}

func (p *endpoint) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// world is a log with endpoints and a manager.
type world struct {
	*natstest.Fixture
	t   *testing.T
	log *jslog.Log
	key *seal.Key
	cfg webhooks.Config
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Fixture: natstest.Start(t), t: t}
	w.log = jslog.New(w.JS)
	var err error
	w.key, err = seal.Load(filepath.Join(t.TempDir(), "key"))
	require.NoError(t, err)
	w.cfg = webhooks.Config{
		Key: w.key, Guard: webhook.Guard{Private: true}, Timeout: 5 * time.Second,
		Backoff: webhooks.Backoff{First: 10 * time.Millisecond, Most: 100 * time.Millisecond, Attempts: 1000},
	}
	return w
}

// run runs a manager. The first function ends it in good order, the second as if it was killed: nothing that it says arrives any more.
func (w *world) run() (stop, kill func()) {
	w.t.Helper()
	nc, err := nats.Connect(w.URL, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	require.NoError(w.t, err)
	js, err := jetstream.New(nc)
	require.NoError(w.t, err)
	m, err := webhooks.New(nc, js, jslog.New(js), slog.New(slog.DiscardHandler), prometheus.NewRegistry(), w.cfg)
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	var once sync.Once
	end := func(first func()) {
		once.Do(func() {
			first()
			cancel()
			<-done
			nc.Close()
		})
	}
	w.t.Cleanup(func() { end(func() {}) })
	return func() { end(func() {}) }, func() { end(nc.Close) }
}

// register makes a webhook for an endpoint and gives its id.
func (w *world) register(p *endpoint, url string, f events.Filter) string {
	w.t.Helper()
	id, secret := ids.New(), webhook.NewSecret()
	sealed, err := secret.Seal(w.key, "acme", id)
	require.NoError(w.t, err)
	if p != nil {
		p.set(func() { p.secret = secret.Reveal() })
	}
	w.do(id, webhook.Create{URL: url, Sealed: sealed, SecretID: secret.ID, Filter: f, Guard: webhook.Guard{Private: true}})
	return id
}

func (w *world) do(id string, c webhook.Command) webhook.Endpoint {
	w.t.Helper()
	p, err := webhook.Execute(w.t.Context(), w.log, "acme", id, ids.New(), "operator:test", time.Now(), c)
	require.NoError(w.t, err)
	return p
}

func (w *world) state(id string) webhook.Endpoint {
	w.t.Helper()
	h, err := w.log.Load(w.t.Context(), subject.Webhook("acme", id))
	require.NoError(w.t, err)
	return webhook.Fold(h)
}

// write appends n events to an aggregate and gives their ids.
func (w *world) write(agg subject.Aggregate, n int) (all []string) {
	w.t.Helper()
	h, err := w.log.Load(w.t.Context(), agg)
	require.NoError(w.t, err)
	for i := range n {
		id := ids.New()
		got, err := w.log.Append(w.t.Context(), agg, h.Tail(), envelope.Event{
			Meta: envelope.Meta{ID: id, Actor: "key:ci"}, Body: &eventsv1.SandboxUsageSampled{UptimeMs: uint64(i)},
		})
		require.NoError(w.t, err)
		h = eventlog.History{Aggregate: agg, Events: append(h.Events, got...)}
		all = append(all, id)
	}
	return all
}

func (w *world) until(done func() bool, why string) {
	w.t.Helper()
	require.Eventually(w.t, done, patience, 5*time.Millisecond, why)
}

// inOrder says whether the first time that each event of an aggregate was taken is in the order of the log, and nothing is missing.
func inOrder(t *testing.T, taken []message, want map[string][]string) {
	t.Helper()
	first := map[string][]string{}
	seen := map[string]bool{}
	for _, m := range taken {
		if !seen[m.ID] {
			seen[m.ID] = true
			first[m.Subject] = append(first[m.Subject], m.ID)
		}
	}
	require.Equal(t, want, first)
}

func box(i int) subject.Aggregate { return subject.Sandbox("acme", fmt.Sprint("s", i)) }
