package jslog

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/linear"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// contend appends and loads as a decider does, n times.
func contend(t *testing.T, log eventlog.Log, aggs []subject.Aggregate, n int) {
	for range n {
		agg := aggs[rand.IntN(len(aggs))]
		h, err := log.Load(t.Context(), agg)
		if err != nil {
			continue // it said that it does not know
		}
		_, _ = log.Append(t.Context(), agg, h.Tail(), newEvents(1)...) // what came of it is in the record
	}
}

func requireLinear(t *testing.T, rec *linear.Recorder) {
	t.Helper()
	done, conflicts := rec.Count()
	t.Logf("%d calls, %d appended, %d conflicts", len(rec.Calls()), done, conflicts)
	require.NotZero(t, conflicts, "no contention, no test")
	require.NotZero(t, done)
	require.Equal(t, linear.Verdict{}, linear.Judge(rec.Calls(), 2*time.Minute))
}

func sandboxes(n int) []subject.Aggregate {
	out := make([]subject.Aggregate, n)
	for i := range out {
		out[i] = subject.Sandbox("acme", ids.New())
	}
	return out
}

func TestConcurrentAppendsAndLoadsAreLinearizable(t *testing.T) {
	f := natstest.Start(t)
	rec, aggs := linear.NewRecorder(), sandboxes(4)
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			log := *New(f.JS)
			net := &faulty{publisher: log.publisher}
			for range 400 {
				net.script = append(net.script, []outcome{goesWell, goesWell, goesWell, ackLost, sentTwice, neverSent}[rand.IntN(6)])
			}
			log.publisher, log.firstPause = net, time.Millisecond
			contend(t, rec.Log(i, &log, true), aggs, 60)
		})
	}
	wg.Wait()
	requireLinear(t, rec)
}

// Loads may be answered by a replica that lags, so here only appends must be linearizable; and nothing acknowledged is lost.
func TestAppendsAreLinearizableWhileServersRestart(t *testing.T) {
	f := natstest.Cluster(t)
	rec, aggs := linear.NewRecorder(), sandboxes(3)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			log := rec.Log(i, New(f.JS), false)
			for {
				select {
				case <-stop:
					return
				default:
					contend(t, log, aggs, 1)
				}
			}
		})
	}
	for i := range 3 {
		f.Bounce(i)
		require.Eventually(t, func() bool {
			_, err := New(f.JS).Append(t.Context(), subject.Sandbox("acme", ids.New()), eventlog.Tail{}, newEvents(1)...)
			return err == nil
		}, 30*time.Second, 10*time.Millisecond)
	}
	// A slow machine gets little done beside the restarts.
	require.Eventually(t, func() bool { _, conflicts := rec.Count(); return conflicts > 0 }, time.Minute, time.Millisecond)
	close(stop)
	wg.Wait()
	requireLinear(t, rec)

	have := map[string]bool{}
	require.Eventually(t, func() bool {
		clear(have)
		for _, agg := range aggs {
			h, err := New(f.JS).Load(t.Context(), agg)
			if err != nil {
				return false
			}
			for _, e := range h.Events {
				have[e.ID] = true
			}
		}
		for _, c := range rec.Calls() {
			if c.Done && !have[c.ID] {
				return false
			}
		}
		return true
	}, 10*time.Second, 50*time.Millisecond, "something acknowledged is not in the log")
}
