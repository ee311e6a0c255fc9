package settle

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/exec/internal/relay"
)

type fixture struct {
	t   *testing.T
	log *jslog.Log
	s   *Settler
	box string
}

func start(t *testing.T) *fixture {
	f := natstest.Start(t)
	log := jslog.New(f.JS)
	out, err := relay.New(t.Context(), f.JS, topology.StreamOutput, relay.Options{})
	require.NoError(t, err)
	return &fixture{t: t, log: log, box: ids.New(), s: &Settler{JS: f.JS, Log: log, Relay: out, Grace: 200 * time.Millisecond}}
}

func (f *fixture) append(exec, command string, c sandbox.ExecCommand) subject.Aggregate {
	agg := subject.Exec("acme", f.box, exec)
	_, err := eventlog.Execute(f.t.Context(), f.log, agg, func(h eventlog.History) ([]envelope.Event, error) {
		x, err := sandbox.FoldExec(h)
		require.NoError(f.t, err)
		bodies, err := sandbox.DecideExec(x, c)
		return sandbox.Events(sandbox.CommandMeta{ID: command, Tenant: "acme", Time: time.Now()}, bodies...), err
	})
	require.NoError(f.t, err)
	return agg
}

func (f *fixture) running() subject.Aggregate {
	id, cmd := ids.New(), ids.New()
	return f.append(id, cmd, sandbox.StartExec{
		CommandID: cmd, SandboxID: f.box, ExecID: id, Worker: "w1", Spec: &eventsv1.ExecSpec{Command: "x", SessionId: "s"}, RequestedAt: time.Now(),
	})
}

func (f *fixture) state(agg subject.Aggregate) sandbox.Exec {
	h, err := f.log.Load(f.t.Context(), agg)
	require.NoError(f.t, err)
	x, err := sandbox.FoldExec(h)
	require.NoError(f.t, err)
	return x
}

func (f *fixture) handle(body proto.Message) {
	require.NoError(f.t, f.s.Handle(f.t.Context(), envelope.Recorded{Subject: subject.Sandbox("acme", f.box).Subject(), Body: body}))
}

func TestEndOfASandboxSettlesEveryOpenExec(t *testing.T) {
	f := start(t)
	running, other := f.running(), f.running()
	id, cmd := ids.New(), ids.New()
	waiting := f.append(id, cmd, sandbox.RequestExec{
		CommandID: cmd, SandboxID: f.box, ExecID: id, Spec: &eventsv1.ExecSpec{Command: "x"}, RequestedAt: time.Now(),
	})
	// Not over yet: the worker may still see the real end.
	f.handle(&eventsv1.SandboxDestroying{Reason: "requested"})
	require.Equal(t, sandbox.ExecRunning, f.state(running).State)

	// One end is recorded by its worker within the grace: it stands.
	go func() {
		f.append(other.ID, sandbox.EndCommand(other.ID), sandbox.CompleteExec{
			Completed: &eventsv1.ExecCompleted{Reason: sandbox.ReasonSandboxDestroyed, ExitCode: 137},
		})
	}()
	f.handle(&eventsv1.SandboxDestroyed{Reason: "requested"})
	lost := f.state(running)
	require.Equal(t, sandbox.ExecLost, lost.State)
	require.Equal(t, "sandbox_destroyed", lost.Lost.GetReason())
	require.Equal(t, sandbox.UsageEventID(running.ID), lost.UsageEventID)
	require.Equal(t, "s", lost.Lost.GetSessionId())
	require.Equal(t, sandbox.ReasonSandboxDestroyed, f.state(waiting).Completed.GetReason())
	require.Equal(t, sandbox.ExecCompleted, f.state(other).State)

	// Once more changes nothing, at once.
	before := f.state(running).LastSeq
	began := time.Now()
	f.handle(&eventsv1.SandboxDestroyed{Reason: "requested"})
	require.Equal(t, before, f.state(running).LastSeq)
	require.Less(t, time.Since(began), f.s.Grace)
}

func TestAStopSettlesTheExecsBeforeItAndNoneOfALaterRun(t *testing.T) {
	f := start(t)
	running := f.running()
	id, cmd := ids.New(), ids.New()
	waiting := f.append(id, cmd, sandbox.RequestExec{
		CommandID: cmd, SandboxID: f.box, ExecID: id, Spec: &eventsv1.ExecSpec{Command: "x"}, RequestedAt: time.Now(),
	})
	stopped := f.state(waiting).LastSeq + 1
	_, err := f.log.Append(t.Context(), subject.Sandbox("acme", ids.New()), eventlog.Tail{}, envelope.Event{
		Meta: envelope.Meta{ID: ids.New(), Tenant: "acme", Time: time.Now()}, Body: &eventsv1.SandboxStopping{},
	})
	require.NoError(t, err)
	later := f.running()
	require.NoError(t, f.s.Handle(t.Context(), envelope.Recorded{
		Subject: subject.Sandbox("acme", f.box).Subject(), Seq: stopped, Body: &eventsv1.SandboxStopped{},
	}))
	require.Equal(t, "sandbox_stopped", f.state(running).Lost.GetReason())
	require.Equal(t, sandbox.ReasonSandboxStopped, f.state(waiting).Completed.GetReason())
	require.Equal(t, sandbox.ExecRunning, f.state(later).State, "the sandbox was started again before it")
}

func TestFailedSandboxLosesItsExecs(t *testing.T) {
	f := start(t)
	running := f.running()
	f.handle(&eventsv1.SandboxFailed{Reason: "runtime_failed"})
	require.Equal(t, "sandbox_lost", f.state(running).Lost.GetReason())
}
