package app_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

const idleTimeout = 10 * time.Minute

// idling makes a sandbox with an idle timeout, 0 for none, that has a day to live.
func (w *world) idling(timeout time.Duration) string {
	w.t.Helper()
	id := ids.New()
	c := createCommand(id, nil)
	c.GetCreate().Limits = &eventsv1.Limits{MaxRuntimeMs: 86_400_000, IdleTimeoutMs: uint64(timeout.Milliseconds())}
	require.Nil(w.t, w.outcome(w.send(c)).GetError())
	w.await(id, sandbox.Ready)
	return id
}

func (w *world) use(id string) *commandsv1.Outcome {
	w.t.Helper()
	return w.outcome(w.send(&commandsv1.SandboxCommand{
		CommandId: ids.New(), SandboxId: id, Command: &commandsv1.SandboxCommand_Use{Use: &commandsv1.UseSandbox{}},
	}))
}

// exec records what happens to an exec of a sandbox.
func (w *world) exec(id, exec string, bodies ...proto.Message) {
	w.t.Helper()
	_, err := eventlog.Execute(w.t.Context(), w.log, subject.Exec(tenant, id, exec), func(eventlog.History) ([]envelope.Event, error) {
		return sandbox.Events(sandbox.CommandMeta{ID: ids.New(), Time: time.Now(), Tenant: tenant}, bodies...), nil
	})
	require.NoError(w.t, err)
}

// at sets the clock of all processes, and returns once one has looked at everything by it.
func (w *world) at(ahead time.Duration, p *process) {
	w.t.Helper()
	w.ahead.Store(int64(ahead))
	seen := p.lists.Load()
	require.Eventually(w.t, func() bool { return p.lists.Load() >= seen+3 }, patience, tick)
}

// A sandbox with an idle timeout ends once nothing was done with it for so long: not while a command runs, not sooner after it was used, and
// neither sooner nor never where the process was started anew in between.
func TestAnIdleSandboxEnds(t *testing.T) {
	w := newWorld(t)
	p := w.start()
	id, never := w.idling(idleTimeout), w.idling(0)

	w.at(9*time.Minute, p)
	require.Equal(t, sandbox.Ready, w.load(id).State)
	require.Nil(t, w.use(id).GetError())
	used := w.load(id)
	require.WithinDuration(t, w.now().Add(5*time.Minute), used.UsedUntil, time.Minute, "it is recorded ahead")
	require.Nil(t, w.use(id).GetError())
	require.Equal(t, used.Seq, w.load(id).Seq, "so that the next use records nothing")
	w.at(23*time.Minute, p)
	require.Equal(t, sandbox.Ready, w.load(id).State)

	run := ids.New()
	w.exec(id, run, &eventsv1.ExecStarted{SandboxId: id, ExecId: run, Spec: &eventsv1.ExecSpec{Command: "sleep"}, Worker: w.config().Worker})
	w.at(40*time.Minute, p)
	require.Equal(t, sandbox.Ready, w.load(id).State, "a command runs")
	require.Eventually(t, func() bool { return w.load(id).UsedUntil.After(used.UsedUntil) }, patience, tick)
	w.exec(id, run, &eventsv1.ExecCompleted{Reason: sandbox.ReasonExited})

	p.kill()
	p = w.start()
	w.at(49*time.Minute, p)
	require.Equal(t, sandbox.Ready, w.load(id).State, "what was recorded stands")
	w.at(51*time.Minute, p)
	s := w.await(id, sandbox.Destroyed)
	require.Equal(t, sandbox.ReasonIdle, s.Reason)
	require.NotContains(t, w.host.ids(), id)
	require.Equal(t, string(fault.ReasonSandboxDestroyed), w.use(id).GetError().GetReason())
	require.Equal(t, sandbox.Ready, w.load(never).State)
	require.NotContains(t, w.types(never), "SandboxUsed")
}

// The end of its last command is use of a sandbox, by the clock of the log, whoever recorded what else.
func TestASandboxIsNotIdleBehindItsLastCommand(t *testing.T) {
	w := newWorld(t)
	p := w.start()
	w.at(-idleTimeout-time.Minute, p)
	id := w.idling(idleTimeout)
	run := ids.New()
	w.exec(id, run,
		&eventsv1.ExecStarted{SandboxId: id, ExecId: run, Spec: &eventsv1.ExecSpec{Command: "true"}, Worker: w.config().Worker},
		&eventsv1.ExecCompleted{Reason: sandbox.ReasonExited})
	w.at(0, p)
	require.Eventually(t, func() bool { return !w.load(id).UsedUntil.IsZero() }, patience, tick)
	w.at(9*time.Minute, p)
	require.Equal(t, sandbox.Ready, w.load(id).State)
	w.at(11*time.Minute, p)
	require.Equal(t, sandbox.ReasonIdle, w.await(id, sandbox.Destroyed).Reason)
}
