package check_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog/linear"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/check"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

func TestAppendsWhileServersOfAClusterRestartAreJudgedWithItsLog(t *testing.T) {
	f := natstest.Cluster(t)
	clients := evidence.Contend(f.JS, "R3", 3, 2*time.Millisecond, false)
	f.Bounce(0)
	before, _ := clients.Count()
	require.Eventually(t, func() bool {
		done, conflicts := clients.Count()
		return done > before && conflicts > 0
	}, time.Minute, 10*time.Millisecond, "no append beside the restart, no test")
	history := clients.Stop()
	events, err := evidence.NewLog(f.JS).Events(t.Context())
	require.NoError(t, err)
	e := evidence.Evidence{Events: events, Appends: []evidence.AppendHistory{history}}
	require.Empty(t, check.All(journal.History{}, e))

	acknowledged := history.Calls[slices.IndexFunc(history.Calls, func(c linear.Call) bool { return c.Done })].ID
	e.Events = slices.DeleteFunc(slices.Clone(e.Events), func(e evidence.Event) bool {
		return slices.Contains(e.Header[envelope.HeaderID], acknowledged)
	})
	found := check.All(journal.History{}, e)
	require.NotEmpty(t, found)
	require.Equal(t, check.OneOrder, found[0].Invariant, "%+v", found)
}
