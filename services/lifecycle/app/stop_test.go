package app_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/quota"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	quotas "github.com/sandtrail/sandtrail/libs/tenant"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/app"
)

func stopCommand(id string) *commandsv1.SandboxCommand {
	return &commandsv1.SandboxCommand{CommandId: ids.New(), SandboxId: id, Command: &commandsv1.SandboxCommand_Stop{Stop: &commandsv1.StopSandbox{}}}
}

func startCommand(id string) *commandsv1.SandboxCommand {
	return &commandsv1.SandboxCommand{CommandId: ids.New(), SandboxId: id, Command: &commandsv1.SandboxCommand_Start{Start: &commandsv1.StartSandbox{}}}
}

// refused sends a command and returns the reason of its refusal; empty where it was accepted.
func (w *world) refused(c *commandsv1.SandboxCommand) fault.Reason {
	w.t.Helper()
	return fault.Reason(w.outcome(w.send(c)).GetError().GetReason())
}

// again delivers a command once more, as when its first delivery was not acknowledged, and returns the reason of its refusal.
func (w *world) again(c *commandsv1.SandboxCommand) fault.Reason {
	w.t.Helper()
	inbox := nats.NewInbox()
	sub, err := w.f.NC.SubscribeSync(inbox)
	require.NoError(w.t, err)
	c.ReplyTo = inbox
	data, err := proto.Marshal(c)
	require.NoError(w.t, err)
	_, err = w.f.JS.Publish(w.t.Context(), subject.SandboxCommand(c.GetTenantId(), c.GetSandboxId()), data, jetstream.WithMsgID(ids.New()))
	require.NoError(w.t, err)
	return fault.Reason(w.outcome(sub).GetError().GetReason())
}

// What a stop or start has done it does not do again, behind another one that undid it: also where its delivery was not acknowledged in between.
func TestAStopOrStartThatComesAgainUndoesNothing(t *testing.T) {
	w := newWorld(t)
	w.start()
	id := w.create()
	stop, start := stopCommand(id), startCommand(id)
	require.Empty(t, w.refused(stop))
	w.await(id, sandbox.Stopped)
	require.Empty(t, w.refused(start))
	w.await(id, sandbox.Ready)
	before, used := w.types(id), w.used()
	require.Empty(t, w.again(stop))
	require.Equal(t, before, w.types(id), "it runs on")

	require.Empty(t, w.refused(stopCommand(id)))
	w.await(id, sandbox.Stopped)
	rested := w.used()
	require.NotEqual(t, used, rested)
	before = w.types(id)
	require.Empty(t, w.again(start))
	require.Equal(t, before, w.types(id), "it stays stopped")
	require.Equal(t, rested, w.used(), "what was taken for it is given back")
	require.Empty(t, w.refused(startCommand(id)))
	w.await(id, sandbox.Ready)
	require.Equal(t, used, w.used())
}

func (w *world) used() quotas.Quotas {
	w.t.Helper()
	used, err := quota.Used(w.t.Context(), w.f.JS, tenant)
	require.NoError(w.t, err)
	return used
}

// write is what a program of the sandbox writes outside of its workspace.
func (w *world) write(id, text string) {
	w.host.with(func(h *host) { h.boxes[id].root = text })
}

func (w *world) root(id string) (running, kept string) {
	w.host.with(func(h *host) {
		if b := h.boxes[id]; b != nil {
			running = b.root
		}
		kept = h.roots[id]
	})
	return running, kept
}

func TestAStoppedSandboxKeepsItsFilesAndFreesItsRoom(t *testing.T) {
	w := newWorld(t)
	w.start()
	id := ids.New()
	plain, err := proto.Marshal(&commandsv1.Env{Vars: map[string]string{"TOKEN": "canary"}})
	require.NoError(t, err)
	env, err := w.key.Seal(plain, []byte(id))
	require.NoError(t, err)
	create := createCommand(id, env)
	create.GetCreate().Name = "demo"
	require.Nil(t, w.outcome(w.send(create)).GetError())
	first := w.await(id, sandbox.Ready)
	w.write(id, "installed")

	require.Empty(t, w.refused(stopCommand(id)))
	s := w.await(id, sandbox.Stopped)
	require.Equal(t, uint64(42), s.Usage.GetCpuMs())
	require.Empty(t, w.host.ids())
	used := w.used()
	require.Equal(t, []uint64{1, 0, 0}, []uint64{used[quotas.Sandboxes], used[quotas.CPU], used[quotas.Memory]})
	require.Equal(t, uint64(5<<30), used[quotas.Workspace], "it keeps its disk")
	require.Empty(t, w.places("worker.w1"), "its worker has room for another one")
	holder, _ := w.holder("demo")
	require.Equal(t, id, holder)
	require.Empty(t, w.refused(stopCommand(id)), "once more is no error")
	taken := namedCommand(ids.New(), "demo")
	require.Equal(t, fault.ReasonNameTaken, w.refused(taken))

	require.Empty(t, w.refused(startCommand(id)))
	again := w.await(id, sandbox.Ready)
	running, kept := w.root(id)
	require.Equal(t, []string{"installed", ""}, []string{running, kept})
	require.Equal(t, "canary", w.host.spec(id).Env["TOKEN"])
	require.Equal(t, []any{first.Hostname, first.CreatedAt, first.ReadyAt, first.Name}, []any{again.Hostname, again.CreatedAt, again.ReadyAt, again.Name})
	require.Equal(t, first.Limits.GetMemoryBytes(), w.used()[quotas.Memory])
	require.Contains(t, w.places("worker.w1"), id)
	require.Empty(t, w.refused(startCommand(id)), "once more is no error")
	require.GreaterOrEqual(t, again.UptimeAt(again.RunningSince), again.PastUptime)
	require.Equal(t, s.Uptime, again.UptimeAt(again.RunningSince), "the time it was stopped does not count")

	require.Empty(t, w.refused(stopCommand(id)))
	w.await(id, sandbox.Stopped)
	w.send(destroyCommand(id))
	w.await(id, sandbox.Destroyed)
	_, kept = w.root(id)
	require.Empty(t, kept)
	require.Zero(t, w.used()[quotas.Sandboxes])
	require.Equal(t, fault.ReasonIllegalState, w.refused(startCommand(id)))
	require.Equal(t, fault.ReasonSandboxNotFound, w.refused(stopCommand(ids.New())))
}

// Every line between two of which a process may die.
var (
	stopSteps = []string{
		"before SandboxStopping", "after SandboxStopping", "before stop", "half stopped", "stopped", "before SandboxStopped", "after SandboxStopped",
	}
	restartSteps = []string{
		"before SandboxStarting", "after SandboxStarting", "before create", "half created", "created", "before SandboxReady", "after SandboxReady",
	}
)

func TestAProcessKilledAtAnyStepOfAStopOrAStartIsTakenUpAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: takes many seconds")
	}
	w := newWorld(t)
	p := w.start()
	id := w.create()
	p.kill()
	for i := range max(len(stopSteps), len(restartSteps)) {
		text := ids.New()
		w.write(id, text)
		step := stopSteps[i%len(stopSteps)]
		p = w.startUntil(step)
		w.send(stopCommand(id))
		require.Eventually(t, p.hit.Load, patience, tick, "never came to: %s", step)
		p.kill()
		p = w.start()
		w.await(id, sandbox.Stopped)
		require.Eventually(t, func() bool { return len(w.host.ids()) == 0 && w.pending() == 0 }, patience, tick, step)
		_, kept := w.root(id)
		require.Equal(t, text, kept, step)
		require.Zero(t, w.used()[quotas.Memory], step)
		p.kill()

		step = restartSteps[i%len(restartSteps)]
		p = w.startUntil(step)
		w.send(startCommand(id))
		require.Eventually(t, p.hit.Load, patience, tick, "never came to: %s", step)
		p.kill()
		p = w.start()
		w.await(id, sandbox.Ready)
		require.Eventually(t, func() bool { return w.pending() == 0 }, patience, tick, step)
		running, _ := w.root(id)
		require.Equal(t, text, running, step)
		require.Equal(t, []string{id}, w.host.ids(), step)
		require.NotZero(t, w.used()[quotas.Memory], step)
		require.Contains(t, w.places("worker.w1"), id, step)
		p.kill()
	}
	types := w.types(id)
	require.Equal(t, count(types, "SandboxStopping"), count(types, "SandboxStopped"))
	require.Equal(t, count(types, "SandboxStopped")+1, count(types, "SandboxReady"))
	require.Zero(t, count(types, "SandboxFailed"))
}

func TestAStartThatFailsLeavesASandboxStopped(t *testing.T) {
	w := newWorld(t)
	w.start()
	id := w.create()
	w.write(id, "kept")
	require.Empty(t, w.refused(stopCommand(id)))
	w.await(id, sandbox.Stopped)
	w.host.with(func(h *host) {
		h.create = func(context.Context, string) error {
			return fault.New(fault.FailedPrecondition, fault.ReasonDiskFull, "no room")
		}
	})
	require.Empty(t, w.refused(startCommand(id)))
	require.Eventually(t, func() bool { s := w.load(id); return s.State == sandbox.Stopped && s.Reason != "" }, patience, tick)
	s := w.load(id)
	require.Equal(t, []string{string(fault.ReasonDiskFull), "no room"}, []string{s.Reason, s.Message})
	require.Empty(t, w.host.ids())
	require.Zero(t, w.used()[quotas.Memory])
	w.host.with(func(h *host) { h.create = nil })
	require.Empty(t, w.refused(startCommand(id)))
	require.Empty(t, w.await(id, sandbox.Ready).Reason)
	running, _ := w.root(id)
	require.Equal(t, "kept", running)
}

func TestDeathIsOneWhileASandboxStopsAndNoneOnceItIsStopped(t *testing.T) {
	w := newWorld(t)
	w.start()
	stopped, dying := w.create(), w.create()
	require.Empty(t, w.refused(stopCommand(stopped)))
	w.await(stopped, sandbox.Stopped)
	before := w.load(stopped).Seq
	w.host.with(func(h *host) { h.boxes[dying].dead = true })
	w.send(stopCommand(dying))
	require.Equal(t, string(fault.ReasonSandboxLost), w.await(dying, sandbox.Failed).Reason)
	w.host.tell(stopped)
	p := w.start()
	require.Eventually(t, func() bool { return p.lists.Load() > 3 }, patience, tick)
	require.Equal(t, before, w.load(stopped).Seq, "nothing of it is to be put right")
}

func TestAStoppedSandboxWhoseFilesAreGoneFailsAtItsStart(t *testing.T) {
	w := newWorld(t)
	w.start()
	id := w.create()
	require.Empty(t, w.refused(stopCommand(id)))
	w.await(id, sandbox.Stopped)
	w.host.with(func(h *host) { delete(h.roots, id) })
	require.Empty(t, w.refused(startCommand(id)))
	require.Equal(t, string(fault.ReasonSandboxLost), w.await(id, sandbox.Failed).Reason)
}

func TestAStoppedSandboxExpiresWithAllThatIsKept(t *testing.T) {
	w := newWorld(t)
	w.start()
	id := w.create()
	require.Empty(t, w.refused(stopCommand(id)))
	w.await(id, sandbox.Stopped)
	w.ahead.Store(int64(2 * time.Hour))
	require.Equal(t, sandbox.ReasonExpired, w.await(id, sandbox.Destroyed).Reason)
	_, kept := w.root(id)
	require.Empty(t, kept)
	require.Zero(t, w.used()[quotas.Workspace])
}

func TestAStartIsHeldToTheQuotasThatAStopFreed(t *testing.T) {
	w := newWorld(t)
	w.start(func(c *app.Config) { c.Quotas = quotas.Quotas{quotas.CPU: 1000} })
	first := w.create()
	require.Equal(t, fault.ReasonQuota, w.refused(createCommand(ids.New(), nil)))
	require.Empty(t, w.refused(stopCommand(first)))
	w.await(first, sandbox.Stopped)
	second := w.create()
	require.Equal(t, fault.ReasonQuota, w.refused(startCommand(first)))
	require.Equal(t, sandbox.Stopped, w.load(first).State)
	w.send(destroyCommand(second))
	w.await(second, sandbox.Destroyed)
	require.Empty(t, w.refused(startCommand(first)))
	w.await(first, sandbox.Ready)
}

func TestAWorkerThatKeepsNothingRefusesAStop(t *testing.T) {
	w := newWorld(t)
	w.plain = true
	w.start()
	id := w.create()
	require.Equal(t, fault.ReasonNotImplemented, w.refused(stopCommand(id)))
	require.Equal(t, sandbox.Ready, w.load(id).State)
	require.True(t, slices.Contains(w.host.ids(), id))
}
