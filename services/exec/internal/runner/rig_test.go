package runner

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/quota"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/seal"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/transcript"
	"github.com/sandtrail/sandtrail/libs/worker"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/exec/internal/relay"
	"github.com/sandtrail/sandtrail/toolbox/client"
)

const tenant = "acme"

// rig is a NATS server, a state directory and one sandbox in it.
type rig struct {
	*natstest.Fixture
	t     testing.TB
	log   *jslog.Log
	key   *seal.Key
	state string
	box   string
	logs  *lockedBuffer
	// log of services, where it is not the plain one.
	wrap func(Log) Log
	// quotas and shares of services; nil: nothing is bounded.
	quotas held
	// poor: its tenant's budget is used up.
	poor   atomic.Bool
	shares *quota.Shares
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newRig(t testing.TB) *rig {
	t.Helper()
	key, err := seal.Load(filepath.Join(t.TempDir(), "key"))
	require.NoError(t, err)
	f := natstest.Start(t)
	return &rig{Fixture: f, t: t, log: jslog.New(f.JS), key: key, state: t.TempDir(), box: ids.New(), logs: &lockedBuffer{}}
}

// sandbox appends facts of the rig's sandbox, by the domain's own commands.
func (r *rig) sandbox(commands ...sandbox.Command) {
	r.t.Helper()
	for _, c := range commands {
		_, err := eventlog.Execute(r.t.Context(), r.log, subject.Sandbox(tenant, r.box), func(h eventlog.History) ([]envelope.Event, error) {
			s, err := sandbox.Fold(h)
			if err != nil {
				return nil, err
			}
			bodies, err := sandbox.Decide(s, c)
			return sandbox.Events(sandbox.CommandMeta{ID: ids.New(), Tenant: tenant, Time: time.Now()}, bodies...), err
		})
		require.NoError(r.t, err)
	}
}

func (r *rig) starting() {
	r.sandbox(sandbox.Create{
		CommandID: ids.New(), At: time.Now(), SandboxID: r.box, Image: "img", Placement: &eventsv1.Placement{Worker: natstest.Worker},
	}, sandbox.Start{Worker: natstest.Worker, Attempt: 1})
}

func (r *rig) markReady() { r.sandbox(sandbox.MarkReady{Worker: natstest.Worker, Hostname: "h"}) }

// service is one running exec service.
type service struct {
	runner *Runner
	stop   func()
}

func (r *rig) service(change func(*Config)) *service {
	r.t.Helper()
	cfg := Config{
		Worker: natstest.Worker, ToolboxGrace: 300 * time.Millisecond, FenceWait: 50 * time.Millisecond, RequeueAfter: 100 * time.Millisecond,
		Log: slog.New(slog.NewTextHandler(r.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&cfg)
	}
	nc, err := nats.Connect(r.URL)
	require.NoError(r.t, err)
	js, err := jetstream.New(nc)
	require.NoError(r.t, err)
	out, err := relay.New(r.t.Context(), js, topology.StreamOutput, relay.Options{Log: cfg.Log})
	require.NoError(r.t, err)
	toolboxes := client.NewPool(func(box string) func(context.Context) (net.Conn, error) { return client.KeeperDialer(r.state, box) })
	r.t.Cleanup(toolboxes.Close)
	log := Log(jslog.New(js))
	if r.wrap != nil {
		log = r.wrap(log)
	}
	run := New(r.t.Context(), cfg, Deps{
		NC: nc, JS: js, Log: log, Relay: out, Key: r.key,
		Toolbox: toolboxes.Client, Alive: toolboxes.Alive, Quotas: allowance{r.quotas, &r.poor}, Shares: r.shares,
		Sandboxes: func(context.Context) ([]string, error) { return []string{r.box}, nil },
	})
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() {
		if err := run.Resume(ctx); err != nil {
			done <- err
			return
		}
		done <- worker.Run(ctx, js, worker.Config{
			Service: "exec", Stream: topology.StreamCommands, Consumer: topology.ConsumerExec(natstest.Worker), Lanes: 16, Log: cfg.Log,
		}, run.Handle)
	}()
	var once sync.Once
	s := &service{runner: run, stop: func() {
		once.Do(func() {
			cancel()
			<-done
			run.Close()
			nc.Close()
		})
	}}
	r.t.Cleanup(s.stop)
	return s
}

// exec is one command under test.
type exec struct {
	r     *rig
	agg   subject.Aggregate
	cmd   *commandsv1.ExecCommand
	inbox *nats.Subscription
}

func (r *rig) exec(spec *eventsv1.ExecSpec, env map[string]string) *exec {
	r.t.Helper()
	x := &exec{r: r, agg: subject.Exec(tenant, r.box, ids.New())}
	var err error
	x.inbox, err = r.NC.SubscribeSync(nats.NewInbox())
	require.NoError(r.t, err)
	start := &commandsv1.StartExec{Spec: spec}
	if env != nil {
		plain, err := proto.Marshal(&commandsv1.Env{Vars: env})
		require.NoError(r.t, err)
		start.SealedEnv, err = r.key.Seal(plain, []byte(x.agg.ID))
		require.NoError(r.t, err)
		for k := range env {
			spec.EnvKeys = append(spec.EnvKeys, k)
		}
	}
	x.cmd = &commandsv1.ExecCommand{
		CommandId: ids.New(), TenantId: tenant, SandboxId: r.box, ExecId: x.agg.ID, Actor: "dev", CorrelationId: ids.New(),
		Time: timestamppb.Now(), ReplyTo: x.inbox.Subject, Command: &commandsv1.ExecCommand_Start{Start: start},
	}
	return x
}

func (x *exec) publish(cmd *commandsv1.ExecCommand) {
	x.r.t.Helper()
	data, err := proto.Marshal(cmd)
	require.NoError(x.r.t, err)
	_, err = x.r.JS.Publish(x.r.t.Context(), subject.ExecCommand(natstest.Worker, tenant, x.r.box, x.agg.ID), data)
	require.NoError(x.r.t, err)
}

func (x *exec) send() *exec { x.publish(x.cmd); return x }

func (x *exec) cancel() {
	c := proto.CloneOf(x.cmd)
	c.CommandId, c.Command = ids.New(), &commandsv1.ExecCommand_Cancel{Cancel: &commandsv1.CancelExec{Reason: "cancelled"}}
	x.publish(c)
}

func (x *exec) outcome() *commandsv1.Outcome {
	x.r.t.Helper()
	m, err := x.inbox.NextMsg(10 * time.Second)
	require.NoError(x.r.t, err)
	o := &commandsv1.Outcome{}
	require.NoError(x.r.t, proto.Unmarshal(m.Data, o))
	return o
}

func (x *exec) history() eventlog.History {
	h, err := x.r.log.Load(x.r.t.Context(), x.agg)
	require.NoError(x.r.t, err)
	return h
}

func (x *exec) state() sandbox.Exec {
	s, err := sandbox.FoldExec(x.history())
	require.NoError(x.r.t, err)
	return s
}

func (x *exec) wait() sandbox.Exec {
	x.r.t.Helper()
	require.Eventually(x.r.t, func() bool { return x.state().Over() }, 30*time.Second, 5*time.Millisecond)
	return x.state()
}

func (x *exec) types() (types []string) {
	for _, e := range x.history().Events {
		types = append(types, string(e.Body.ProtoReflect().Descriptor().Name()))
	}
	return types
}

// output is what is stored, checked for holes and repeats.
func (x *exec) output() map[string][]byte {
	x.r.t.Helper()
	got, n := map[string][]byte{}, uint64(0)
	err := transcript.Read(x.r.t.Context(), x.r.JS, subject.Output(tenant, x.r.box, x.agg.ID), 1, func(c transcript.Chunk) error {
		n++
		require.Equal(x.r.t, n, c.Number)
		require.Equal(x.r.t, uint64(len(got[c.Stream])), c.Offset, "chunk %d", n)
		got[c.Stream] = append(got[c.Stream], c.Data...)
		return nil
	})
	require.NoError(x.r.t, err)
	return got
}

func (x *exec) message() worker.Message {
	data, err := proto.Marshal(x.cmd)
	require.NoError(x.r.t, err)
	return worker.Message{Subject: subject.ExecCommand(natstest.Worker, tenant, x.r.box, x.agg.ID), Data: data, Attempt: 1}
}

// fenced appends started, as a service does that is killed right behind it.
func (x *exec) fenced() {
	x.r.t.Helper()
	bodies, err := sandbox.DecideExec(sandbox.Exec{}, sandbox.StartExec{
		CommandID: x.cmd.GetCommandId(), SandboxID: x.r.box, ExecID: x.agg.ID, Spec: x.cmd.GetStart().GetSpec(), Worker: natstest.Worker,
		RequestedAt: time.Now(),
	})
	require.NoError(x.r.t, err)
	events := sandbox.Events(sandbox.CommandMeta{ID: x.cmd.GetCommandId(), Tenant: tenant, Time: time.Now()}, bodies...)
	events[0].ID = ids.Event(x.cmd.GetCommandId(), indexStarted)
	_, err = x.r.log.Append(x.r.t.Context(), x.agg, eventlog.Tail{}, events...)
	require.NoError(x.r.t, err)
}

func boxOf(r *rig) subject.Aggregate { return subject.Sandbox(tenant, r.box) }
