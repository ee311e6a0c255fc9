package openexecs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// Whoever settles or resumes execs looks for them once: one that a replica does not show yet would stay open for ever.
func TestNoOpenExecIsMissedBehindAReplicaThatLags(t *testing.T) {
	f := natstest.Start(t)
	log, behind := jslog.New(f.JS), f.Behind(t, f.NC, time.Second)
	box := ids.New()
	var want []subject.Aggregate
	for range 5 {
		agg := subject.Exec("acme", box, ids.New())
		_, err := log.Append(t.Context(), agg, eventlog.Tail{}, sandbox.Events(
			sandbox.CommandMeta{ID: ids.New(), Time: time.Now(), Tenant: "acme"},
			&eventsv1.ExecStarted{SandboxId: box, ExecId: agg.ID, Spec: &eventsv1.ExecSpec{Command: "x"}})...)
		require.NoError(t, err)
		want = append(want, agg)
		open, err := Of(t.Context(), behind, "acme", box)
		require.NoError(t, err)
		require.ElementsMatch(t, want, open)
	}
	open, err := Of(t.Context(), behind, "acme", ids.New())
	require.NoError(t, err)
	require.Empty(t, open)
}
