package app_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/seal"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/app"
)

const (
	tenant   = "acme"
	patience = 20 * time.Second
	tick     = 10 * time.Millisecond
)

// world is a real NATS server and a host on which processes of lifecycle come and go.
type world struct {
	t    *testing.T
	f    *natstest.Fixture
	host *host
	dir  string
	log  *jslog.Log
	key  *seal.Key
	// lag is how far the replica of the log that the processes read is behind; 0: they read the newest.
	lag time.Duration
	// ahead is added to every process's clock.
	ahead atomic.Int64
	// find is asked before the log is asked whose an id is.
	find func(ctx context.Context, filter string) error
	// plain: the driver has nothing but what every driver has.
	plain bool
	// logged is everything that any process logged.
	logged logged
}

type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func newWorld(t *testing.T) *world {
	f := natstest.Start(t)
	dir := t.TempDir()
	key, err := seal.Load(filepath.Join(dir, "seal.key"))
	require.NoError(t, err)
	w := &world{t: t, f: f, host: newHost(), dir: dir, log: jslog.New(f.JS), key: key}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.logged.String())
		}
	})
	return w
}

func (w *world) now() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) }

func (w *world) config() app.Config {
	return app.Config{
		Worker: natstest.Worker, StateDir: w.dir, SealKeyFile: filepath.Join(w.dir, "seal.key"),
		HeartbeatEvery: 100 * time.Millisecond, ReconcileEvery: 50 * time.Millisecond, SweepEvery: 100 * time.Millisecond,
		OrphanGrace: 300 * time.Millisecond, EndTimeout: 5 * time.Second, StartDeadline: time.Minute, Lanes: 16,
	}
}

var errKilled = errors.New("the process was killed")

// process is one running lifecycle. After kill nothing that it does reaches anything any more.
type process struct {
	w    *world
	nc   *nats.Conn
	stop context.CancelFunc
	dead atomic.Bool
	// point is the step at which it kills itself, once.
	point string
	hit   atomic.Bool
	// lists counts the passes of its reconciler, walks those over the workspaces.
	lists, walks atomic.Int64
}

func (w *world) start(change ...func(*app.Config)) *process { return w.startUntil("", change...) }

// startUntil starts a process that dies at a step: of the driver, or "before TYPE" or "after TYPE" for the append of an event.
func (w *world) startUntil(point string, change ...func(*app.Config)) *process {
	w.t.Helper()
	p, _ := w.measured(point, change...)
	return p
}

// measured is startUntil, with the process's metrics.
func (w *world) measured(point string, change ...func(*app.Config)) (*process, *prometheus.Registry) {
	w.t.Helper()
	cfg := w.config()
	for _, c := range change {
		c(&cfg)
	}
	nc, err := nats.Connect(w.f.URL)
	require.NoError(w.t, err)
	ctx, stop := context.WithCancel(context.Background())
	p := &process{w: w, nc: nc, stop: stop, point: point}
	js, err := jetstream.New(nc)
	require.NoError(w.t, err)
	if w.lag > 0 {
		js = w.f.Behind(w.t, nc, w.lag)
	}
	reg := prometheus.NewPedanticRegistry()
	a, err := app.New(ctx, cfg, app.Deps{
		NC: nc, Log: slog.New(slog.NewTextHandler(&w.logged, &slog.HandlerOptions{Level: slog.LevelDebug})), Registry: reg,
		Driver: w.driver(p), Events: &mortal{Log: jslog.New(js), p: p}, Now: w.now,
	})
	require.NoError(w.t, err)
	w.hasten()
	go func() {
		if err := a.Run(ctx); !p.dead.Load() && (err != nil || ctx.Err() == nil) {
			w.t.Errorf("a process of lifecycle ended that nobody killed: %v", err)
		}
	}()
	w.t.Cleanup(p.kill)
	return p, reg
}

func (w *world) driver(p *process) runtime.Driver {
	d := &driver{host: w.host, at: p.at}
	if w.plain {
		return struct{ runtime.Driver }{d}
	}
	return d
}

// hasten lets the server deliver again after 200 ms what a killed process held; in operation it is half a minute.
func (w *world) hasten() {
	w.t.Helper()
	for _, name := range []string{topology.ConsumerScheduler, topology.ConsumerWorker(natstest.Worker)} {
		c, err := w.f.JS.Consumer(w.t.Context(), topology.StreamCommands, name)
		require.NoError(w.t, err)
		cfg := c.CachedInfo().Config
		cfg.AckWait = 200 * time.Millisecond
		_, err = w.f.JS.UpdateConsumer(w.t.Context(), topology.StreamCommands, cfg)
		require.NoError(w.t, err)
	}
}

func (p *process) at(step string) error {
	if p.dead.Load() {
		return errKilled
	}
	switch step {
	case "list":
		p.lists.Add(1)
	case "walk":
		p.walks.Add(1)
	}
	if p.point != "" && step == p.point {
		p.hit.Store(true)
		p.kill()
		return errKilled
	}
	return nil
}

// kill cuts the process off at once. What goroutines it has end by themselves; nothing that they do reaches anything.
func (p *process) kill() {
	p.dead.Store(true)
	p.nc.Close()
	p.stop()
}

// mortal is the log as a process sees it until it dies.
type mortal struct {
	*jslog.Log
	p *process
}

func (m *mortal) Find(ctx context.Context, filter string) (subject.Aggregate, error) {
	if find := m.p.w.find; find != nil {
		if err := find(ctx, filter); err != nil {
			return subject.Aggregate{}, err
		}
	}
	return m.Log.Find(ctx, filter)
}

func (m *mortal) steps(when string, events ...envelope.Event) error {
	for _, e := range events {
		if err := m.p.at(when + " " + string(e.Body.ProtoReflect().Descriptor().Name())); err != nil {
			return err
		}
	}
	return nil
}

func (m *mortal) Append(ctx context.Context, agg subject.Aggregate, after eventlog.Tail, events ...envelope.Event) ([]envelope.Recorded, error) {
	if err := m.steps("before", events...); err != nil {
		return nil, err
	}
	r, err := m.Log.Append(ctx, agg, after, events...)
	return r, errors.Join(err, m.steps("after", events...))
}

func (m *mortal) AppendBatch(ctx context.Context, entries ...eventlog.Entry) ([]envelope.Recorded, error) {
	var all []envelope.Event
	for _, e := range entries {
		all = append(all, e.Events...)
	}
	if err := m.steps("before", all...); err != nil {
		return nil, err
	}
	r, err := m.Log.AppendBatch(ctx, entries...)
	return r, errors.Join(err, m.steps("after", all...))
}

// send publishes a command and returns where its outcome will come.
func (w *world) send(c *commandsv1.SandboxCommand) *nats.Subscription {
	w.t.Helper()
	inbox := nats.NewInbox()
	sub, err := w.f.NC.SubscribeSync(inbox)
	require.NoError(w.t, err)
	c.ReplyTo, c.TenantId, c.Actor, c.Time = inbox, tenantOf(c), "dev", timestamppb.Now()
	data, err := proto.Marshal(c)
	require.NoError(w.t, err)
	_, err = w.f.JS.Publish(w.t.Context(), subject.SandboxCommand(c.GetTenantId(), c.GetSandboxId()), data, jetstream.WithMsgID(c.GetCommandId()))
	require.NoError(w.t, err)
	return sub
}

func tenantOf(c *commandsv1.SandboxCommand) string {
	if c.GetTenantId() != "" {
		return c.GetTenantId()
	}
	return tenant
}

func (w *world) outcome(sub *nats.Subscription) *commandsv1.Outcome {
	w.t.Helper()
	m, err := sub.NextMsg(patience)
	require.NoError(w.t, err)
	out := &commandsv1.Outcome{}
	require.NoError(w.t, proto.Unmarshal(m.Data, out))
	return out
}

func createCommand(id string, env []byte) *commandsv1.SandboxCommand {
	return &commandsv1.SandboxCommand{
		CommandId: ids.Derive("create", id), SandboxId: id, CorrelationId: "corr",
		Command: &commandsv1.SandboxCommand_Create{Create: &commandsv1.CreateSandbox{
			Image: "python", SessionId: "s", EnvKeys: []string{"TOKEN"}, SealedEnv: env,
			Limits: &eventsv1.Limits{MaxRuntimeMs: 3_600_000},
		}},
	}
}

func destroyCommand(id string) *commandsv1.SandboxCommand {
	return &commandsv1.SandboxCommand{
		CommandId: ids.Derive("destroy", id), SandboxId: id,
		Command: &commandsv1.SandboxCommand_Destroy{Destroy: &commandsv1.DestroySandbox{Reason: sandbox.ReasonRequested}},
	}
}

func (w *world) load(id string) sandbox.Sandbox {
	w.t.Helper()
	h, err := w.log.Load(w.t.Context(), subject.Sandbox(tenant, id))
	require.NoError(w.t, err)
	s, err := sandbox.Fold(h)
	require.NoError(w.t, err)
	return s
}

func (w *world) await(id, state string) sandbox.Sandbox {
	w.t.Helper()
	var s sandbox.Sandbox
	require.Eventually(w.t, func() bool { s = w.load(id); return s.State == state }, patience, tick, "%s never became %s", id, state)
	return s
}

// create makes a sandbox and waits until it is ready.
func (w *world) create() string {
	w.t.Helper()
	id := ids.New()
	require.Nil(w.t, w.outcome(w.send(createCommand(id, nil))).GetError())
	w.await(id, sandbox.Ready)
	return id
}

// types are the types of a sandbox's events in order.
func (w *world) types(id string) []string {
	w.t.Helper()
	h, err := w.log.Load(w.t.Context(), subject.Sandbox(tenant, id))
	require.NoError(w.t, err)
	require.NoError(w.t, eventlog.Verify(h))
	var out []string
	for _, e := range h.Events {
		out = append(out, string(e.Body.ProtoReflect().Descriptor().Name()))
	}
	return out
}
