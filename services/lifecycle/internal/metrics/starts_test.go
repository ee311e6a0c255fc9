package metrics_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/projection"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/metrics"
)

const patience = 30 * time.Second

// record appends a sandbox's history, each command so long after the request as its entry says.
func record(t *testing.T, log eventlog.Log, worker string, steps ...step) {
	t.Helper()
	id := ids.New()
	steps = append([]step{{0, sandbox.Create{
		CommandID: id, At: time.Unix(100, 0), SandboxID: id, Image: "i", Placement: &eventsv1.Placement{Worker: worker},
	}}}, steps...)
	for i, st := range steps {
		_, err := eventlog.Execute(t.Context(), log, subject.Sandbox("acme", id), func(h eventlog.History) ([]envelope.Event, error) {
			s, err := sandbox.Fold(h)
			require.NoError(t, err)
			bodies, err := sandbox.Decide(s, st.command)
			return sandbox.Events(sandbox.CommandMeta{ID: fmt.Sprint(id, i), Time: time.Unix(100, 0).Add(st.after), Tenant: "acme"}, bodies...), err
		})
		require.NoError(t, err)
	}
}

type step struct {
	after   time.Duration
	command sandbox.Command
}

// started is a sandbox that was ready after so long.
func started(worker string, after time.Duration) []step {
	return []step{
		{after / 2, sandbox.Start{Worker: worker, Attempt: 1}},
		{after, sandbox.MarkReady{Worker: worker, Hostname: "h"}},
	}
}

func failed(at time.Duration, reason fault.Reason) step {
	return step{at, sandbox.Fail{At: time.Unix(100, 0).Add(at), Reason: reason, Phase: "starting"}}
}

// shown is what a scrape shows: how many were ready, in how many seconds, how many of them within a second, and failures by reason.
type shown struct {
	ready, withinASecond uint64
	seconds              float64
	// warm of those that were ready took a warm sandbox.
	warm   float64
	failed map[string]float64
}

func show(t *testing.T, c prometheus.Collector) shown {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, reg.Register(c))
	families, err := reg.Gather()
	require.NoError(t, err)
	out := shown{failed: map[string]float64{}}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "sandtrail_sandbox_warm_total" {
				out.warm = m.GetCounter().GetValue()
				continue
			}
			if f.GetType() == dto.MetricType_COUNTER {
				if v := m.GetCounter().GetValue(); v > 0 {
					out.failed[m.GetLabel()[0].GetValue()] = v
				}
				continue
			}
			out.ready, out.seconds = m.GetHistogram().GetSampleCount(), m.GetHistogram().GetSampleSum()
			for _, b := range m.GetHistogram().GetBucket() {
				if b.GetUpperBound() == 1 {
					out.withinASecond = b.GetCumulativeCount()
				}
			}
		}
	}
	return out
}

// follow counts until stop, which is called at the end at the latest.
func follow(t *testing.T, f *natstest.Fixture, worker string) (s *metrics.Starts, r *projection.Runner, stop func()) {
	t.Helper()
	s, err := metrics.NewStarts(t.Context(), f.JS, jslog.New(f.JS), worker)
	require.NoError(t, err)
	r = projection.New(f.JS, s, projection.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return s, r, stop
}

func end(t *testing.T, f *natstest.Fixture) uint64 {
	t.Helper()
	s, err := f.JS.Stream(t.Context(), topology.StreamEvents)
	require.NoError(t, err)
	return s.CachedInfo().State.LastSeq
}

func caughtUp(t *testing.T, f *natstest.Fixture, r *projection.Runner) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, r.WaitFor(ctx, end(t, f)))
}

func TestStartsAreCountedOnceOverRestartsAndReplays(t *testing.T) {
	f := natstest.Start(t)
	log := jslog.New(f.JS)
	record(t, log, "w1", started("w1", 500*time.Millisecond)...)
	record(t, log, "w1", append(started("w1", time.Second), failed(time.Hour, fault.ReasonSandboxLost))...)
	record(t, log, "w1", step{time.Second, sandbox.Start{Worker: "w1", Attempt: 1}}, step{400 * time.Second, sandbox.MarkReady{Worker: "w1", Hostname: "h", Warm: true}})
	record(t, log, "w1", failed(time.Second, fault.ReasonImageNotFound))
	record(t, log, "w1", failed(time.Second, "a reason of a newer version"))
	record(t, log, "w2", started("w2", time.Second)...)
	record(t, log, "w2", failed(time.Second, fault.ReasonImageNotFound))
	want := shown{
		ready: 3, withinASecond: 2, seconds: 401.5, warm: 1,
		failed: map[string]float64{"sandbox_lost": 1, "image_not_found": 1, "other": 1},
	}
	s, r, stop := follow(t, f, "w1")
	caughtUp(t, f, r)
	require.Equal(t, want, show(t, s))
	stop()

	again, err := metrics.NewStarts(t.Context(), f.JS, log, "w1")
	require.NoError(t, err)
	require.Equal(t, want, show(t, again), "known before any event is read")

	s, r, stop = follow(t, f, "w1")
	caughtUp(t, f, r)
	require.NoError(t, r.Rebuild(t.Context()))
	require.Equal(t, want, show(t, s), "a replay counts nothing again")
	record(t, log, "w1", started("w1", time.Second)...)
	caughtUp(t, f, r)
	want.ready, want.withinASecond, want.seconds = 4, 3, 402.5
	require.Equal(t, want, show(t, s))
	stop()

	other, r, _ := follow(t, f, "w2")
	caughtUp(t, f, r)
	require.Equal(t, shown{ready: 1, withinASecond: 1, seconds: 1, failed: map[string]float64{"image_not_found": 1}}, show(t, other))
}

func TestTwoProcessesOfOneWorkerCountOnce(t *testing.T) {
	f := natstest.Start(t)
	log := jslog.New(f.JS)
	worker := strings.Repeat("w", 64) // the longest name that there may be
	a, ra, _ := follow(t, f, worker)
	b, rb, _ := follow(t, f, worker)
	const n = 25
	for range n {
		record(t, log, worker, started(worker, time.Second)...)
	}
	caughtUp(t, f, ra)
	caughtUp(t, f, rb)
	// Who came second knows of the last event when it is told of it, and perhaps nothing of what it lost before.
	third, err := metrics.NewStarts(t.Context(), f.JS, log, worker)
	require.NoError(t, err)
	for _, s := range []*metrics.Starts{a, b, third} {
		require.Equal(t, shown{ready: n, withinASecond: n, seconds: n, failed: map[string]float64{}}, show(t, s))
	}
}

func TestALogThatWasMadeAnewIsCountedAnew(t *testing.T) {
	f := natstest.Start(t)
	log := jslog.New(f.JS)
	for range 3 {
		record(t, log, "w1", started("w1", time.Second)...)
	}
	s, r, _ := follow(t, f, "w1")
	caughtUp(t, f, r)
	require.EqualValues(t, 3, show(t, s).ready)
	require.NoError(t, f.JS.DeleteStream(t.Context(), topology.StreamEvents))
	require.NoError(t, topology.Ensure(t.Context(), f.JS, f.Options))
	record(t, log, "w1", started("w1", time.Second)...)
	require.Eventually(t, func() bool { return show(t, s).ready == 1 }, patience, 10*time.Millisecond)
}

func TestStartsAreCountedThroughARestartOfTheServer(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: waits for a reconnect")
	}
	f := natstest.Start(t)
	log := jslog.New(f.JS)
	s, r, _ := follow(t, f, "w1")
	record(t, log, "w1", started("w1", time.Second)...)
	caughtUp(t, f, r)
	f.Restart()
	record(t, log, "w1", started("w1", time.Second)...)
	caughtUp(t, f, r)
	require.EqualValues(t, 2, show(t, s).ready)
}
