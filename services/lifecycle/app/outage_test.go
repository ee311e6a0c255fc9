package app_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
)

func TestARestartOfTheBrokerLosesNothingThatWasAccepted(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: waits for a reconnect")
	}
	w := newWorld(t)
	w.start()
	var all []string
	for range 10 {
		id := ids.New()
		w.send(createCommand(id, nil))
		all = append(all, id)
	}
	w.f.Restart()
	for _, id := range all {
		w.await(id, sandbox.Ready)
		w.send(destroyCommand(id))
	}
	w.f.Restart()
	for _, id := range all {
		w.await(id, sandbox.Destroyed)
	}
	require.Empty(t, w.host.ids())
	for _, id := range all {
		require.Equal(t, 1, w.host.made[id])
		require.Equal(t, 1, count(w.types(id), "SandboxReady"))
	}
	require.Eventually(t, func() bool { return w.places("worker."+natstest.Worker) == "" }, patience, tick)
}

// manyWorkspaces puts workspaces on the host that a worker which has just started must ask the log about.
func manyWorkspaces(w *world) map[string]bool {
	all := map[string]bool{}
	for range 50 {
		all[subject.AnyTenantSandbox(ids.New())] = true
	}
	w.host.with(func(h *host) {
		for filter := range all {
			h.disks[filter[len(filter)-len(ids.New()):]] = true
		}
	})
	return all
}

func TestADeathIsFoundWhileTheLogIsSlowToTellOfWorkspaces(t *testing.T) {
	w := newWorld(t)
	asked := make(chan struct{}, 100)
	slow := manyWorkspaces(w)
	w.find = func(ctx context.Context, filter string) error {
		if !slow[filter] {
			return nil
		}
		asked <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	w.start()
	<-asked
	id := w.create()
	w.host.with(func(h *host) { h.boxes[id].dead = true })
	w.await(id, sandbox.Failed)
}

// What walks over workspaces does not keep the walk over sandboxes from one that is on the host with its workspace.
func TestAnOrphanIsEndedWhileTheLogIsAskedAboutItsWorkspace(t *testing.T) {
	w := newWorld(t)
	orphan := ids.New()
	var asked atomic.Int64
	w.find = func(ctx context.Context, filter string) error {
		if filter == subject.AnyTenantSandbox(orphan) && asked.Add(1) == 1 {
			<-ctx.Done() // the first is the workspace's: the box comes behind it
			return ctx.Err()
		}
		return nil
	}
	w.host.with(func(h *host) { h.disks[orphan] = true })
	w.start()
	require.Eventually(t, func() bool { return asked.Load() > 0 }, patience, tick)
	w.host.with(func(h *host) { h.boxes[orphan] = &box{spec: runtime.Spec{ID: orphan, Tenant: tenant}, whole: true} })
	require.Eventually(t, func() bool { return len(w.host.ids()) == 0 }, patience, tick)
}

func TestALogThatDoesNotAnswerIsAskedAboutOneWorkspaceEachTime(t *testing.T) {
	w := newWorld(t)
	silent := manyWorkspaces(w)
	var asked atomic.Int64
	w.find = func(_ context.Context, filter string) error {
		if !silent[filter] {
			return nil
		}
		asked.Add(1)
		return fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "no answer")
	}
	p := w.start()
	require.Eventually(t, func() bool { return p.walks.Load() >= 5 }, patience, tick)
	// The walk is counted first, so there are never more questions than walks.
	n := asked.Load()
	require.LessOrEqual(t, n, p.walks.Load())
	require.Positive(t, n)
}

// Who measures may hang with the host that died; the death is known all the same.
func TestADeathDoesNotWaitForWhatItsSandboxUsed(t *testing.T) {
	w := newWorld(t)
	w.start()
	id := w.create()
	w.host.with(func(h *host) {
		h.stats = func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		h.boxes[id].dead = true
	})
	died := time.Now()
	w.host.tell(id)
	w.await(id, sandbox.Failed)
	require.Less(t, time.Since(died), 5*time.Second)
}
