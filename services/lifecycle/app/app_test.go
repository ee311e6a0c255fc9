package app_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/quota"
	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	quotas "github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/app"
)

func TestASandboxLivesAndEnds(t *testing.T) {
	w := newWorld(t)
	w.start()
	id := ids.New()
	const canary = "canary-5f0c9a"
	plain, err := proto.Marshal(&commandsv1.Env{Vars: map[string]string{"TOKEN": canary}})
	require.NoError(t, err)
	env, err := w.key.Seal(plain, []byte(id))
	require.NoError(t, err)
	out := w.outcome(w.send(createCommand(id, env)))
	require.Nil(t, out.GetError())
	require.NotZero(t, out.GetSequence())
	s := w.await(id, sandbox.Ready)
	require.Equal(t, "sandbox-"+id[:8], s.Hostname)
	require.Equal(t, "sha256:1", s.ImageDigest)
	at := &eventsv1.Endpoint{Address: "10.0.0.1:7070", Runtime: "sandbox-" + id[:8], Uid: "uid-" + id, KeySha256: []byte{1, 2}}
	require.True(t, proto.Equal(at, s.Endpoint), "%v", s.Endpoint)
	require.Equal(t, uint32(1000), s.Limits.GetCpuMillis())
	require.Equal(t, time.Hour, s.ExpiresAt.Sub(s.CreatedAt))
	spec := w.host.spec(id)
	require.Equal(t, canary, spec.Env["TOKEN"])
	require.Equal(t, uint64(5<<30), spec.WorkspaceBytes)
	require.Equal(t, "/workspace", spec.MountPath)

	kv, err := w.f.JS.KeyValue(t.Context(), topology.BucketSandbox)
	require.NoError(t, err)
	view := func(state string) *commandsv1.SandboxView {
		v := &commandsv1.SandboxView{}
		require.Eventually(t, func() bool {
			e, err := kv.Get(t.Context(), tenant+"."+id)
			return err == nil && proto.Unmarshal(e.Value(), v) == nil && v.GetState() == state
		}, patience, tick)
		return v
	}
	require.Equal(t, s.Seq, view(sandbox.Ready).GetSequence())

	require.Nil(t, w.outcome(w.send(destroyCommand(id))).GetError())
	s = w.await(id, sandbox.Destroyed)
	require.Equal(t, uint64(42), s.Usage.GetCpuMs())
	require.WithinDuration(t, time.Now().Add(24*time.Hour), s.DeleteAfter, time.Minute)
	require.Empty(t, w.host.ids())
	require.Equal(t, []string{"SandboxRequested", "SandboxStarting", "SandboxReady", "SandboxDestroying", "SandboxDestroyed"}, w.types(id))
	disks, err := w.log.Load(t.Context(), subject.Workspace(tenant, id))
	require.NoError(t, err)
	disk, err := sandbox.FoldWorkspace(disks)
	require.NoError(t, err)
	require.Equal(t, s.DeleteAfter, disk.DeleteAfter)
	view(sandbox.Destroyed)

	require.NotContains(t, w.logged.String(), canary)
	h, err := w.log.Load(t.Context(), subject.Sandbox(tenant, id))
	require.NoError(t, err)
	for _, e := range h.Events {
		require.NotContains(t, string(e.Data), canary)
	}
	require.Nil(t, w.outcome(w.send(destroyAgain(id))).GetError(), "the end of what has ended is no error")
	out = w.outcome(w.send(destroyCommand(ids.New())))
	require.Equal(t, string(fault.ReasonSandboxNotFound), out.GetError().GetReason())
	require.Equal(t, uint32(codes.NotFound), out.GetGrpcCode())
}

func destroyAgain(id string) *commandsv1.SandboxCommand {
	c := destroyCommand(id)
	c.CommandId = ids.New()
	return c
}

// Every line between two of which a process may die, of a create and of a destroy.
var (
	createSteps = []string{
		"before SandboxRequested", "after SandboxRequested", "before SandboxStarting", "after SandboxStarting", "before create",
		"half created", "created", "before SandboxReady", "after SandboxReady",
	}
	destroySteps = []string{
		"before SandboxDestroying", "after SandboxDestroying", "before destroy", "destroyed", "before SandboxDestroyed", "after SandboxDestroyed",
	}
)

func TestAProcessKilledAtAnyStepLeavesNothingBehind(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: takes many seconds")
	}
	w := newWorld(t)
	for _, step := range createSteps {
		id := ids.New()
		p := w.startUntil(step)
		w.send(createCommand(id, nil))
		require.Eventually(t, p.hit.Load, patience, tick, "never came to: %s", step)
		p.kill()
		p = w.start()
		s := w.await(id, sandbox.Ready)
		require.Equal(t, []string{id}, w.host.ids(), step)
		require.Equal(t, 1, w.host.made[id], step)
		require.Equal(t, "st"+id, s.RuntimeID)
		w.send(destroyCommand(id))
		w.await(id, sandbox.Destroyed)
		p.kill()
		w.empty(id, step)
	}
	for _, step := range destroySteps {
		p := w.start()
		id := w.create()
		p.kill()
		p = w.startUntil(step)
		w.send(destroyCommand(id))
		require.Eventually(t, p.hit.Load, patience, tick, "never came to: %s", step)
		p.kill()
		p = w.start()
		w.await(id, sandbox.Destroyed)
		require.Eventually(t, func() bool { return len(w.host.ids()) == 0 }, patience, tick)
		p.kill()
		w.empty(id, step)
	}
}

// empty says that a sandbox ended once, that nothing of it is left, and that its workspace is released.
func (w *world) empty(id, step string) {
	w.t.Helper()
	require.Empty(w.t, w.host.ids(), step)
	types := w.types(id)
	for _, once := range []string{"SandboxRequested", "SandboxReady", "SandboxDestroying", "SandboxDestroyed"} {
		require.Equal(w.t, 1, count(types, once), "%s in %v behind %q", once, types, step)
	}
	h, err := w.log.Load(w.t.Context(), subject.Workspace(tenant, id))
	require.NoError(w.t, err)
	require.Len(w.t, h.Events, 1, step)
	require.Empty(w.t, w.places("worker."+natstest.Worker), step)
	used, err := quota.Used(w.t.Context(), w.f.JS, tenant)
	require.NoError(w.t, err)
	require.Zero(w.t, used[quotas.Sandboxes], step)
	require.Zero(w.t, used[quotas.Memory], step)
}

func count(all []string, s string) int {
	n := 0
	for _, x := range all {
		if x == s {
			n++
		}
	}
	return n
}

// places are the ids that take up places under a key.
func (w *world) places(key string) string {
	w.t.Helper()
	kv, err := w.f.JS.KeyValue(w.t.Context(), topology.BucketPlace)
	require.NoError(w.t, err)
	e, err := kv.Get(w.t.Context(), key)
	if err != nil {
		require.ErrorIs(w.t, err, jetstream.ErrKeyNotFound)
		return ""
	}
	return strings.Trim(string(e.Value()), "{}")
}

func TestTwentyAtOnce(t *testing.T) {
	w := newWorld(t)
	w.start()
	var all []string
	for range 20 {
		all = append(all, ids.New())
	}
	w.each(all, func(id string) {
		w.send(createCommand(id, nil))
		w.await(id, sandbox.Ready)
	})
	require.ElementsMatch(t, all, w.host.ids())
	w.each(all, func(id string) {
		w.send(destroyCommand(id))
		w.await(id, sandbox.Destroyed)
	})
	require.Empty(t, w.host.ids())
	require.Empty(t, w.places("worker."+natstest.Worker))
}

func (w *world) each(all []string, do func(id string)) {
	var wg sync.WaitGroup
	for _, id := range all {
		wg.Go(func() { do(id) })
	}
	wg.Wait()
}

func quotaOf(name quotas.Quota, limit uint64) func(*app.Config) {
	return func(c *app.Config) { c.Quotas = quotas.Quotas{name: limit} }
}

func TestLimitsAreExactAlsoInParallelAndOnTwoSchedulers(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*app.Config)
		names  []string
	}{
		"of a tenant":    {func(c *app.Config) { c.MaxPerTenant = 7 }, []string{"acme", "7", "quota sandboxes"}},
		"its cores":      {quotaOf(quotas.CPU, 7500), []string{"acme", "7500", "quota cpu_millis"}},
		"its memory":     {quotaOf(quotas.Memory, 8<<30-1), []string{"quota memory_bytes"}},
		"its workspaces": {quotaOf(quotas.Workspace, 7*5<<30), []string{"quota workspace_bytes"}},
		"of a worker":    {func(c *app.Config) { c.MaxSandboxes = 7 }, []string{"7", "max_sandboxes"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.start(c.change)
			w.start(c.change, func(c *app.Config) { c.Roles = []string{app.RoleScheduler} })
			var all []string
			for range 40 {
				all = append(all, ids.New())
			}
			outcomes := map[string]*commandsv1.Outcome{}
			subs := map[string]*nats.Subscription{}
			for _, id := range all {
				subs[id] = w.send(createCommand(id, nil))
			}
			var accepted []string
			for id, sub := range subs {
				outcomes[id] = w.outcome(sub)
				if outcomes[id].GetError() == nil {
					accepted = append(accepted, id)
					continue
				}
				require.Equal(t, string(fault.ReasonQuota), outcomes[id].GetError().GetReason())
				require.Equal(t, uint32(codes.ResourceExhausted), outcomes[id].GetGrpcCode())
				for _, part := range c.names {
					require.Contains(t, outcomes[id].GetError().GetMessage(), part)
				}
			}
			require.Len(t, accepted, 7)
			for _, id := range accepted {
				w.await(id, sandbox.Ready)
			}
			slices.Sort(accepted)
			require.Equal(t, accepted, w.host.ids())
			for _, id := range accepted {
				w.send(destroyCommand(id))
				w.await(id, sandbox.Destroyed)
				// Whoever has seen the end finds the place free.
				require.Nil(t, w.outcome(w.send(createCommand(ids.New(), nil))).GetError())
			}
		})
	}
}

func TestASandboxDestroyedWhileItStartsStopsAtOnce(t *testing.T) {
	w := newWorld(t)
	w.host.create = func(ctx context.Context, _ string) error {
		<-ctx.Done()
		return ctx.Err()
	}
	w.start()
	id := ids.New()
	require.Nil(t, w.outcome(w.send(createCommand(id, nil))).GetError())
	require.Eventually(t, func() bool { return len(w.host.ids()) == 1 }, patience, tick)
	begin := time.Now()
	require.Nil(t, w.outcome(w.send(destroyCommand(id))).GetError())
	w.await(id, sandbox.Destroyed)
	require.Less(t, time.Since(begin), 10*time.Second)
	require.Empty(t, w.host.ids())
	require.NotContains(t, w.types(id), "SandboxFailed")
}

func TestAStartThatTakesTooLongFailsWithTheReason(t *testing.T) {
	w := newWorld(t)
	w.host.create = func(ctx context.Context, _ string) error {
		<-ctx.Done()
		return fault.New(fault.Unavailable, fault.ReasonImagePullFailed, "the registry does not answer")
	}
	w.start(func(c *app.Config) { c.StartDeadline = 300 * time.Millisecond })
	id := ids.New()
	w.send(createCommand(id, nil))
	s := w.await(id, sandbox.Failed)
	require.Equal(t, string(fault.ReasonStartDeadline), s.Reason)
	require.Contains(t, s.Message, "the registry does not answer")
	require.Eventually(t, func() bool { return len(w.host.ids()) == 0 }, patience, tick)
	require.Eventually(t, func() bool { return w.places("worker."+natstest.Worker) == "" }, patience, tick)
}

func TestAFailedStartSaysWhyAndLeavesNothing(t *testing.T) {
	w := newWorld(t)
	w.host.create = func(context.Context, string) error {
		return fault.New(fault.NotFound, fault.ReasonImageNotFound, "there is no image python")
	}
	w.start()
	id := ids.New()
	w.send(createCommand(id, nil))
	s := w.await(id, sandbox.Failed)
	require.Equal(t, string(fault.ReasonImageNotFound), s.Reason)
	require.Equal(t, "there is no image python", s.Message)
	require.Eventually(t, func() bool { return len(w.host.ids()) == 0 }, patience, tick)
	w.send(destroyCommand(id))
	require.Equal(t, string(fault.ReasonImageNotFound), w.await(id, sandbox.Destroyed).Reason)
}

func TestWhatCannotBeEndedIsNotRecordedAsEnded(t *testing.T) {
	w := newWorld(t)
	w.start()
	id := w.create()
	w.host.with(func(h *host) { h.destroy = func(string) error { return fmt.Errorf("the kill failed") } })
	require.Nil(t, w.outcome(w.send(destroyCommand(id))).GetError())
	require.Never(t, func() bool { return w.load(id).State != sandbox.Destroying }, 500*time.Millisecond, tick)
	require.Equal(t, []string{id}, w.host.ids())
	require.Contains(t, w.places("worker."+natstest.Worker), id, "it still takes up its place")
	w.host.with(func(h *host) { h.destroy = nil })
	w.await(id, sandbox.Destroyed)
	require.Empty(t, w.host.ids())
}

func TestTheReconcilerFindsDeathsOrphansAndWhatIsOverTime(t *testing.T) {
	w := newWorld(t)
	w.start(func(c *app.Config) { c.SampleEvery = 50 * time.Millisecond })
	lost, oom, old := w.create(), w.create(), w.create()
	w.host.with(func(h *host) {
		delete(h.boxes, lost)
		h.boxes[oom].dead, h.boxes[oom].reason = true, "oom_killed"
	})
	require.Equal(t, string(fault.ReasonSandboxLost), w.await(lost, sandbox.Failed).Reason)
	require.Equal(t, "oom_killed", w.await(oom, sandbox.Failed).Reason)
	require.Eventually(t, func() bool { return slices.Equal(w.host.ids(), []string{old}) }, patience, tick)
	require.Eventually(t, func() bool { return w.load(old).Usage.GetCpuMs() == 21 }, patience, tick, "usage is sampled")

	orphan := ids.New()
	w.host.with(func(h *host) { h.boxes[orphan] = &box{spec: runtime.Spec{ID: orphan, Tenant: tenant}, whole: true} })
	require.Eventually(t, func() bool { return slices.Equal(w.host.ids(), []string{old}) }, patience, tick)

	w.ahead.Store(int64(time.Hour))
	s := w.await(old, sandbox.Destroyed)
	require.Equal(t, sandbox.ReasonExpired, s.Reason)
	require.Equal(t, string(fault.ReasonSandboxLost), w.await(lost, sandbox.Destroyed).Reason, "the failed ones end with their time too")
	require.Empty(t, w.host.ids())
}

func TestASandboxThatDoesNotAnswerIsNotDeadAtOnce(t *testing.T) {
	w := newWorld(t)
	w.start()
	id := w.create()
	w.host.with(func(h *host) { h.silent[id] = true })
	require.Never(t, func() bool { return w.load(id).State != sandbox.Ready }, 300*time.Millisecond, tick)
	w.ahead.Store(int64(3 * time.Minute))
	require.Equal(t, string(fault.ReasonToolboxUnavailable), w.await(id, sandbox.Failed).Reason)
	require.Eventually(t, func() bool { return len(w.host.ids()) == 0 }, patience, tick)
}

func TestWorkspacesThatTheLogDoesNotKnowAreKeptForLong(t *testing.T) {
	w := newWorld(t)
	w.start()
	unknown := ids.New()
	w.host.with(func(h *host) { h.disks[unknown] = true })
	exists := func() bool {
		w.host.mu.Lock()
		defer w.host.mu.Unlock()
		return w.host.disks[unknown]
	}
	w.ahead.Store(int64(23 * time.Hour))
	require.Never(t, func() bool { return !exists() }, 300*time.Millisecond, tick)
	w.ahead.Store(int64(49 * time.Hour))
	require.Eventually(t, func() bool { return !exists() }, patience, tick)
}

func TestWhatAnEndedSandboxLeftIsRemoved(t *testing.T) {
	w := newWorld(t)
	w.start()
	id := w.create()
	w.send(destroyCommand(id))
	w.await(id, sandbox.Destroyed)
	w.host.with(func(h *host) { h.boxes[id] = &box{spec: runtime.Spec{ID: id, Tenant: tenant}, whole: true} })
	require.Eventually(t, func() bool { return len(w.host.ids()) == 0 }, patience, tick)
	require.Equal(t, 1, count(w.types(id), "SandboxDestroyed"))
}

func TestAWorkspaceIsDeletedOnlyWhenItIsDue(t *testing.T) {
	w := newWorld(t)
	w.start()
	id := w.create()
	ask := func() {
		data, err := proto.Marshal(&commandsv1.WorkerCommand{
			CommandId: ids.New(), TenantId: tenant, SandboxId: id,
			Command: &commandsv1.WorkerCommand_DeleteWorkspace{DeleteWorkspace: &commandsv1.DeleteWorkspace{}},
		})
		require.NoError(t, err)
		_, err = w.f.JS.Publish(t.Context(), subject.WorkerCommand(natstest.Worker, tenant, id), data)
		require.NoError(t, err)
	}
	drained := func() bool {
		c, err := w.f.JS.Consumer(t.Context(), topology.StreamCommands, topology.ConsumerWorker(natstest.Worker))
		require.NoError(t, err)
		info, err := c.Info(t.Context())
		return err == nil && info.NumPending == 0 && info.NumAckPending == 0
	}
	exists := func() bool {
		w.host.mu.Lock()
		defer w.host.mu.Unlock()
		return w.host.disks[id]
	}
	ask()
	require.Eventually(t, drained, patience, tick)
	require.True(t, exists(), "that of a live sandbox stays")
	w.send(destroyCommand(id))
	s := w.await(id, sandbox.Destroyed)
	ask()
	require.Eventually(t, drained, patience, tick)
	require.True(t, exists(), "that of a dead one stays until its time")
	w.host.with(func(h *host) { h.kept[id] = s.DeleteAfter.Add(time.Hour) })
	w.ahead.Store(int64(time.Until(s.DeleteAfter) + time.Second))
	ask()
	require.Eventually(t, drained, patience, tick)
	require.True(t, exists(), "one that is kept by its own mark stays until then")
	w.host.with(func(h *host) { delete(h.kept, id) })
	ask()
	require.Eventually(t, func() bool { return !exists() }, patience, tick)
	kv, err := w.f.JS.KeyValue(t.Context(), topology.BucketSandbox)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		v := &commandsv1.SandboxView{}
		e, err := kv.Get(t.Context(), tenant+"."+id)
		return err == nil && proto.Unmarshal(e.Value(), v) == nil && v.GetWorkspaceDeletedAt() != nil
	}, patience, tick)
}

func TestRequestsOverTheBoundsAreRefusedNotCut(t *testing.T) {
	w := newWorld(t)
	w.start()
	c := createCommand(ids.New(), nil)
	create := c.GetCreate()
	create.Limits.MemoryBytes, create.Limits.CpuMillis, create.Limits.MaxRuntimeMs = 1<<40, 1<<30, 1<<50
	out := w.outcome(w.send(c))
	require.Equal(t, uint32(codes.InvalidArgument), out.GetGrpcCode())
	for _, field := range []string{"limits.memory_bytes", "limits.cpu_millis", "limits.max_runtime"} {
		require.Contains(t, out.GetError().GetFields(), field)
	}
	require.Empty(t, w.load(c.GetSandboxId()).State)
	require.Empty(t, w.places("worker."+natstest.Worker))
}

func TestAConfigurationTellsAllItsMistakesAtOnce(t *testing.T) {
	err := app.Config{Worker: "a b", MaxSandboxes: -1, Roles: []string{"worker", "x"}, StartDeadline: -1, Warm: app.WarmConfig{Max: -1, HitRate: 2}}.Validate()
	for _, part := range []string{"warm max:", "warm hit rate:", "worker:", "max sandboxes:", "roles:", "start deadline:", "state directory:", "seal key file:"} {
		require.ErrorContains(t, err, part)
	}
}
