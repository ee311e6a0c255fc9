package app_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
)

func namedCommand(id, name string) *commandsv1.SandboxCommand {
	c := createCommand(id, nil)
	c.GetCreate().Name = name
	return c
}

// holder is the sandbox that has a name, and the types of the name's events.
func (w *world) holder(name string) (id string, types []string) {
	w.t.Helper()
	h, err := w.log.Load(w.t.Context(), subject.Name(tenant, sandbox.NameID(name)))
	require.NoError(w.t, err)
	require.NoError(w.t, eventlog.Verify(h))
	for _, e := range h.Events {
		types = append(types, string(e.Body.ProtoReflect().Descriptor().Name()))
	}
	n, err := sandbox.FoldName(h)
	require.NoError(w.t, err)
	return n.Sandbox, types
}

func TestANameBelongsToOneSandboxUntilItIsGone(t *testing.T) {
	w := newWorld(t)
	w.start()
	first, second := ids.New(), ids.New()
	require.Nil(t, w.outcome(w.send(namedCommand(first, "demo"))).GetError())
	require.Equal(t, "demo", w.await(first, sandbox.Ready).Name)
	require.Equal(t, string(fault.ReasonNameTaken), w.outcome(w.send(namedCommand(second, "demo"))).GetError().GetReason())
	require.Equal(t, string(fault.ReasonValidation), w.outcome(w.send(namedCommand(ids.New(), "a/b"))).GetError().GetReason())
	require.Equal(t, 1, strings.Count(w.places("worker.w1"), `"t":`), "who was refused holds no place")
	other := namedCommand(ids.New(), "demo")
	other.TenantId = "globex"
	require.Nil(t, w.outcome(w.send(other)).GetError(), "another tenant has names of its own")
	w.send(destroyCommand(first))
	w.await(first, sandbox.Destroyed)
	id, types := w.holder("demo")
	require.Empty(t, id, "released with the end, not later")
	require.Equal(t, []string{"NameReserved", "NameReleased"}, types)
	third := ids.New()
	require.Nil(t, w.outcome(w.send(namedCommand(third, "demo"))).GetError())
	w.await(third, sandbox.Ready)
	id, _ = w.holder("demo")
	require.Equal(t, third, id)
}

func TestACreateMayNameItsWorkerOrRegion(t *testing.T) {
	w := newWorld(t)
	w.start()
	for want, change := range map[string]func(*commandsv1.CreateSandbox){
		"":                             func(c *commandsv1.CreateSandbox) { c.Worker = "w1" },
		"not \"mars\"":                 func(c *commandsv1.CreateSandbox) { c.Region = "mars" },
		"not the worker \"elsewhere\"": func(c *commandsv1.CreateSandbox) { c.Worker = "elsewhere" },
	} {
		cmd := createCommand(ids.New(), nil)
		change(cmd.GetCreate())
		e := w.outcome(w.send(cmd)).GetError()
		require.Contains(t, e.GetMessage(), want)
		require.Equal(t, want == "", e == nil, "%s", e)
	}
}

// Several creates of one name, and processes that die at every step of them and of the end: one sandbox has the name, the others never
// were, and the name is free again when it is gone.
func TestAProcessKilledAtAnyStepLeavesNoNameBehind(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: takes many seconds")
	}
	w := newWorld(t)
	steps := slices.Concat([]string{"before NameReserved", "after NameReserved"}, createSteps)
	for i, step := range steps {
		name := fmt.Sprintf("n%d", i)
		dying := w.startUntil(step)
		rivals := make([]string, 3)
		for j := range rivals {
			rivals[j] = ids.New()
			w.send(namedCommand(rivals[j], name))
		}
		require.Eventually(t, dying.hit.Load, patience, tick, "never came to: %s", step)
		dying.kill()
		p := w.start()
		winner := ""
		require.Eventually(t, func() bool { winner, _ = w.holder(name); return winner != "" }, patience, tick, step)
		require.Contains(t, rivals, winner)
		require.Equal(t, name, w.await(winner, sandbox.Ready).Name)
		require.Eventually(t, func() bool { return w.pending() == 0 }, patience, tick, "every command is answered")
		for _, id := range rivals {
			require.Equal(t, id == winner, len(w.types(id)) > 0, "%s: a refused create never was", step)
		}
		p.kill()
		step = destroySteps[i%len(destroySteps)]
		dying = w.startUntil(step)
		w.send(destroyCommand(winner))
		require.Eventually(t, dying.hit.Load, patience, tick, "never came to: %s", step)
		dying.kill()
		p = w.start()
		w.await(winner, sandbox.Destroyed)
		id, types := w.holder(name)
		require.Empty(t, id, step)
		require.Equal(t, []string{"NameReserved", "NameReleased"}, types, step)
		p.kill()
	}
}

// pending is how many commands nobody has acknowledged yet.
func (w *world) pending() uint64 {
	w.t.Helper()
	s, err := w.f.JS.Stream(w.t.Context(), "CMD")
	require.NoError(w.t, err)
	info, err := s.Info(w.t.Context())
	require.NoError(w.t, err)
	return info.State.Msgs
}

// Creates and ends of few names at random from several callers, while processes die: a name and its sandbox always agree.
func TestNamesAndSandboxesAgreeWhateverTheOrder(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: takes many seconds")
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w := newWorld(t)
	w.start()
	steps := slices.Concat([]string{"before NameReserved", "after NameReserved", "before NameReleased", "after NameReleased"}, createSteps, destroySteps)
	var mu sync.Mutex
	made := map[string]string{}
	var all sync.WaitGroup
	for caller := range 4 {
		r := rand.New(rand.NewPCG(seed, uint64(caller)))
		all.Go(func() {
			for range 12 {
				id, name := ids.New(), fmt.Sprintf("n%d", r.IntN(3))
				mu.Lock()
				made[id] = name
				mu.Unlock()
				if out := w.outcome(w.send(namedCommand(id, name))); out.GetError() == nil && r.IntN(4) > 0 {
					w.send(destroyCommand(id))
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(seed, 99))
	for range 6 {
		p := w.startUntil(steps[r.IntN(len(steps))])
		_ = p // it dies on the way, or when the test ends
	}
	all.Wait()
	require.Eventually(t, func() bool { return w.pending() == 0 }, patience, tick)
	holders := map[string]string{}
	for i := range 3 {
		name := fmt.Sprintf("n%d", i)
		holders[name], _ = w.holder(name)
	}
	for id, name := range made {
		s := w.load(id)
		switch {
		case !s.Exists() || s.State == sandbox.Destroyed:
			require.NotEqual(t, id, holders[name], "%s has a name and is no more", id)
		default:
			require.Equal(t, id, holders[name], "%s lives without its name", id)
		}
	}
}
