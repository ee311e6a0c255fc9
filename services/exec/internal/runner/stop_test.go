package runner

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// stopped has the rig's sandbox stopped, and again starts it again, as lifecycle does.
func (r *rig) stopped() { r.sandbox(sandbox.Stop{}, sandbox.MarkStopped{At: time.Now()}) }
func (r *rig) again()   { r.sandbox(sandbox.Restart{At: time.Now()}); r.markReady() }

func TestAStoppedSandboxRefusesExecsUntilItIsStarted(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.markReady()
	k := startKeeper(t, r.state, r.box, hello)
	r.service(nil)
	r.exec(spec(), nil).send().wait()
	k.die()
	r.stopped()
	x := r.exec(spec(), nil).send()
	require.Equal(t, "sandbox_stopped", x.outcome().GetError().GetReason())
	require.Empty(t, x.history().Events)
	r.again()
	startKeeper(t, r.state, r.box, hello)
	require.Equal(t, sandbox.ExecCompleted, r.exec(spec(), nil).send().wait().State)
}

func TestAnExecThatWaitsForASandboxThatIsStoppedNeverRan(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.service(nil)
	x := r.exec(spec(), nil).send()
	require.Nil(t, x.outcome().GetError())
	r.sandbox(sandbox.MarkReady{Worker: "w1"}, sandbox.Stop{}, sandbox.MarkStopped{At: time.Now()})
	s := x.wait()
	require.False(t, s.Started())
	require.Equal(t, sandbox.ReasonSandboxStopped, s.Completed.GetReason())
}

// Its program may have run before the sandbox was stopped: nobody knows, so that it must not run now.
func TestAnExecOfAnEarlierRunIsNeverStartedInALaterOne(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.markReady()
	x, y := r.exec(spec(), nil), r.exec(spec(), nil)
	x.fenced()
	x.send()
	y.fenced()
	r.stopped()
	r.again()
	k := startKeeper(t, r.state, r.box, hello)
	r.service(nil)
	for _, old := range []*exec{x, y} {
		require.Equal(t, "sandbox_stopped", old.wait().Lost.GetReason())
		require.Zero(t, k.started(old.agg.ID))
	}
	later := r.exec(spec(), nil)
	later.fenced()
	later.send()
	require.Equal(t, sandbox.ExecCompleted, later.wait().State)
	require.Equal(t, 1, k.started(later.agg.ID))
}

// The service that had run it died before it acknowledged its command, and the sandbox was stopped and started before the next delivery. What
// runs in it now knows nothing of the exec; the log does.
func TestACommandThatComesAgainBehindANewRunOfItsSandboxStartsNothing(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.markReady()
	k := startKeeper(t, r.state, r.box, hello)
	s := r.service(nil)
	ended, open := r.exec(spec(), nil).send(), r.exec(spec(), nil)
	require.Equal(t, sandbox.ExecCompleted, ended.wait().State)
	require.Nil(t, ended.outcome().GetError())
	s.stop()
	open.fenced()
	k.die()
	r.stopped()
	r.again()
	k = startKeeper(t, r.state, r.box, hello)
	r.service(nil)
	for _, x := range []*exec{ended, open} {
		x.send()
		require.Nil(t, x.outcome().GetError())
		require.True(t, x.wait().Over())
	}
	require.Equal(t, sandbox.ExecCompleted, r.exec(spec(), nil).send().wait().State)
	require.Zero(t, k.started(ended.agg.ID))
	require.Zero(t, k.started(open.agg.ID))
}

// behind does something once behind a call of the log that matters.
type behind struct {
	Log
	start, loaded func()
}

func (l *behind) Append(ctx context.Context, agg subject.Aggregate, after eventlog.Tail, events ...envelope.Event) ([]envelope.Recorded, error) {
	all, err := l.Log.Append(ctx, agg, after, events...)
	if l.start != nil && slices.ContainsFunc(events, func(e envelope.Event) bool { _, ok := e.Body.(*eventsv1.ExecStarted); return ok }) {
		l.start()
	}
	return all, err
}

func (l *behind) Load(ctx context.Context, agg subject.Aggregate) (eventlog.History, error) {
	h, err := l.Log.Load(ctx, agg)
	if l.loaded != nil && agg.Kind == subject.KindSandbox {
		l.loaded()
	}
	return h, err
}

// However long the service sleeps between its decision to start a program and the call, and whatever becomes of the call: the toolbox of the
// sandbox's next run starts nothing that is of the run before.
func TestTheNextRunOfASandboxStartsNothingOfTheOneBefore(t *testing.T) {
	for name, c := range map[string]struct {
		// at has next called once.
		at     func(r *rig, k *keeper, x *exec, next func())
		starts int
	}{
		"behind the record": {at: func(r *rig, _ *keeper, _ *exec, next func()) {
			r.wrap = func(l Log) Log { return &behind{Log: l, start: next} }
		}},
		"behind the look at the sandbox": {at: func(r *rig, k *keeper, x *exec, next func()) {
			x.fenced()
			var listed atomic.Bool
			k.listing = func() { listed.Store(true) }
			r.wrap = func(l Log) Log {
				return &behind{Log: l, loaded: func() {
					if listed.Load() {
						next()
					}
				}}
			}
		}},
		"behind the program's start": {starts: 1, at: func(_ *rig, k *keeper, _ *exec, next func()) { k.starting = next }},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.starting()
			r.markReady()
			old := startKeeper(t, r.state, r.box, forever)
			x := r.exec(spec(), nil)
			var later *keeper
			c.at(r, old, x, sync.OnceFunc(func() {
				r.stopped()
				later = startKeeper(t, r.state, r.box, hello)
				old.stop() // what it was asked goes on, and nobody hears of it
				r.again()
			}))
			r.service(nil)
			x.send()
			require.Equal(t, "sandbox_stopped", x.wait().Lost.GetReason())
			require.Equal(t, c.starts, old.started(x.agg.ID))
			require.Zero(t, later.started(x.agg.ID))
			require.Equal(t, sandbox.ExecCompleted, r.exec(spec(), nil).send().wait().State)
		})
	}
}

func TestAnExecThatRunsWhenItsSandboxIsStoppedIsSettled(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.markReady()
	k := startKeeper(t, r.state, r.box, forever)
	r.service(func(c *Config) { c.ToolboxGrace = time.Minute })
	x := r.exec(spec(), nil).send()
	require.Nil(t, x.outcome().GetError())
	require.Eventually(t, func() bool { return k.started(x.agg.ID) == 1 }, 10*time.Second, time.Millisecond)
	k.die()
	r.stopped()
	require.Equal(t, "sandbox_stopped", x.wait().Lost.GetReason())
}
