package app_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/services/lifecycle/app"
)

// seldom has the host looked at once and then no more within a test: what is seen is seen by being told.
func seldom(c *app.Config) { c.ReconcileEvery = time.Hour }

func shared(c *app.Config) { c.Shared = true }

// loses ends a sandbox on the host, with a reason, and tells the drivers.
func (w *world) loses(id string, reason fault.Reason) {
	w.host.with(func(h *host) { h.boxes[id].dead, h.boxes[id].reason = true, reason })
	w.host.tell(id)
}

func TestADeathThatTheDriverTellsStandsInTheLogAtOnce(t *testing.T) {
	w := newWorld(t)
	w.start(seldom)
	for _, reason := range []fault.Reason{fault.ReasonEvicted, fault.ReasonOutOfMemory, fault.ReasonNodeLost, fault.ReasonSandboxLost} {
		id := w.create()
		began := time.Now()
		w.loses(id, reason)
		s := w.await(id, sandbox.Failed)
		require.Less(t, time.Since(began), 10*time.Second)
		require.Equal(t, string(reason), s.Reason)
		require.Eventually(t, func() bool { return len(w.host.ids()) == 0 }, patience, tick, "its remains stay")
	}
}

func TestAChangeThatIsNoEndIsNoEvent(t *testing.T) {
	w := newWorld(t)
	w.start(seldom)
	id, other := w.create(), w.create()
	w.host.with(func(h *host) { h.silent[id] = true })
	for range 100 {
		w.host.tell(id)
		w.host.tell(other)
		w.host.tell("00000000-0000-4000-8000-000000000000")
	}
	// What was told before has been looked at when a later one has.
	w.loses(other, fault.ReasonEvicted)
	w.await(other, sandbox.Failed)
	require.Equal(t, []string{"SandboxRequested", "SandboxStarting", "SandboxReady"}, w.types(id))
}

func TestAnEndThatFailedIsReachedWhenTheDriverTells(t *testing.T) {
	w := newWorld(t)
	w.start(seldom)
	id := w.create()
	stuck := true
	w.host.with(func(h *host) {
		h.destroy = func(string) error {
			if stuck {
				return fault.New(fault.Unavailable, fault.ReasonNodeLost, "its node does not answer")
			}
			return nil
		}
	})
	w.send(destroyCommand(id))
	w.await(id, sandbox.Destroying)
	require.Never(t, func() bool { return w.load(id).State != sandbox.Destroying }, 300*time.Millisecond, tick, "what is not seen gone is not said to be")
	w.host.with(func(*host) { stuck = false })
	w.host.tell(id)
	w.await(id, sandbox.Destroyed)
	require.Equal(t, 1, count(w.types(id), "SandboxDestroyed"))
}

func TestOneOfTwoReplicasReconcilesAndTheOtherTakesOver(t *testing.T) {
	w := newWorld(t)
	replicas := []*process{w.start(shared), w.start(shared)}
	leader := func() int { return slices.IndexFunc(replicas, func(p *process) bool { return p.lists.Load() > 0 }) }
	require.Eventually(t, func() bool { return leader() >= 0 }, patience, tick)
	first, second := replicas[leader()], replicas[1-leader()]

	// Commands go to both: each has some of them in hand, and nothing is made twice.
	var all []string
	for range 8 {
		all = append(all, w.create())
	}
	for _, id := range all {
		require.Equal(t, 1, w.host.made[id])
	}
	looked := first.lists.Load()
	require.Eventually(t, func() bool { return first.lists.Load() > looked+20 }, patience, tick)
	require.Zero(t, second.lists.Load(), "two reconcile at once")

	first.kill()
	killed := time.Now()
	w.loses(all[0], fault.ReasonEvicted)
	s := w.await(all[0], sandbox.Failed)
	require.Less(t, time.Since(killed), 5*time.Second)
	require.Equal(t, string(fault.ReasonEvicted), s.Reason)

	// From now on it is told, and sees it at once.
	began := time.Now()
	w.loses(all[1], fault.ReasonOutOfMemory)
	w.await(all[1], sandbox.Failed)
	require.Less(t, time.Since(began), 10*time.Second)
	for _, id := range all[2:] {
		require.Equal(t, sandbox.Ready, w.load(id).State)
	}

	// One that comes later waits, and has the lease when the other ends in peace.
	third := w.start(shared)
	looked = second.lists.Load()
	require.Eventually(t, func() bool { return second.lists.Load() > looked+20 }, patience, tick)
	require.Zero(t, third.lists.Load())
	second.stop()
	require.Eventually(t, func() bool { return third.lists.Load() > 0 }, patience, tick)
}
