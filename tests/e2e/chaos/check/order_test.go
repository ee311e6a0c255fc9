package check_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/eventlog/linear"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/check"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

func TestAppendsWhileServersOfAClusterRestartAreJudgedWithItsLog(t *testing.T) {
	f := natstest.Cluster(t)
	rec := linear.NewRecorder()
	aggs := []subject.Aggregate{subject.Tenant("chaos-a"), subject.Tenant("chaos-b")}
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for i := range 3 {
		// Without loads: a replica that lags may answer them.
		log := rec.Log(i, jslog.New(f.JS), false)
		clients.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if h, err := log.Load(t.Context(), aggs[n%2]); err == nil {
					_, _ = log.Append(t.Context(), aggs[n%2], h.Tail(), appended(ids.New())) // the record says what came of it
				}
			}
		})
	}
	f.Bounce(0)
	before, _ := rec.Count()
	require.Eventually(t, func() bool {
		done, conflicts := rec.Count()
		return done > before && conflicts > 0
	}, time.Minute, 10*time.Millisecond, "no append beside the restart, no test")
	close(stop)
	clients.Wait()
	events, err := evidence.NewLog(f.JS).Events(t.Context())
	require.NoError(t, err)
	e := evidence.Evidence{Events: events, Appends: []evidence.AppendHistory{{Log: "R3", Calls: rec.Calls()}}}
	require.Empty(t, check.All(journal.History{}, e))

	calls := rec.Calls()
	acknowledged := calls[slices.IndexFunc(calls, func(c linear.Call) bool { return c.Done })].ID
	e.Events = slices.DeleteFunc(slices.Clone(e.Events), func(e evidence.Event) bool {
		return slices.Contains(e.Header[envelope.HeaderID], acknowledged)
	})
	found := check.All(journal.History{}, e)
	require.NotEmpty(t, found)
	require.Equal(t, check.OneOrder, found[0].Invariant, "%+v", found)
}
