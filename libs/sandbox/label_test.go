package sandbox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// The history of a sandbox stays bounded however often somebody changes its labels.
func TestLabelsChangeABoundedNumberOfTimes(t *testing.T) {
	agg := subject.Sandbox("acme", sandboxID)
	h, state := eventlog.History{Aggregate: agg}, sandbox.Sandbox{ID: sandboxID, Tenant: "acme"}
	do := func(c sandbox.Command) error {
		bodies, err := sandbox.Decide(state, c)
		for _, r := range record(t, agg, h.Tail(), start.Add(time.Second), fmt.Sprint(len(h.Events)), bodies...) {
			var everr error
			state, everr = state.Evolve(r)
			require.NoError(t, everr)
			h.Events = append(h.Events, r)
		}
		return err
	}
	label := func(i int) sandbox.Label { return sandbox.Label{Labels: map[string]string{"n": fmt.Sprint(i)}} }
	require.NoError(t, do(create()))
	for i := range sandbox.MaxRelabels {
		require.NoError(t, do(label(i)))
	}
	require.Len(t, h.Events, sandbox.MaxRelabels+1)
	err := do(label(-1))
	require.True(t, fault.Is(err, fault.ReasonQuota), "%v", err)
	require.Equal(t, fault.ResourceExhausted, fault.CodeOf(err))
	require.NoError(t, do(label(sandbox.MaxRelabels-1)), "what it has already is no change")
	require.NoError(t, do(sandbox.Destroy{}))
	require.True(t, fault.Is(do(label(0)), fault.ReasonIllegalState))
	require.Len(t, h.Events, sandbox.MaxRelabels+2)
	folded, err := sandbox.Fold(h)
	require.NoError(t, err)
	require.Equal(t, state.Labels, folded.Labels)
	require.Equal(t, sandbox.MaxRelabels, folded.Relabelled)
}
