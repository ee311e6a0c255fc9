package sandbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

func TestWhatAStartWaitsForBelongsToTheStart(t *testing.T) {
	agg := subject.Sandbox("acme", sandboxID)
	s := sandbox.Sandbox{ID: sandboxID, Tenant: "acme"}
	at := start
	do := func(c sandbox.Command) int {
		t.Helper()
		bodies, err := sandbox.Decide(s, c)
		require.NoError(t, err)
		at = at.Add(time.Second)
		for _, e := range record(t, agg, eventlog.Tail{Seq: s.Seq, Digest: s.Digest}, at, "c", bodies...) {
			s, err = s.Evolve(e)
			require.NoError(t, err)
		}
		return len(bodies)
	}
	waits := sandbox.MarkWaiting{Worker: "w1", Reason: fault.ReasonUnschedulable, Message: "no node takes it"}
	_, err := sandbox.Decide(s, waits)
	require.True(t, fault.Is(err, fault.ReasonSandboxNotFound))
	do(sandbox.Create{CommandID: "c", At: at, SandboxID: sandboxID, Image: "i", Placement: &eventsv1.Placement{Worker: "w1"}})
	require.Zero(t, do(waits), "nothing has begun yet")
	do(sandbox.Start{Worker: "w1", Attempt: 1})
	begun := s.StartingAt
	require.Equal(t, 1, do(waits))
	require.Zero(t, do(waits), "the same again")
	require.Zero(t, do(sandbox.MarkWaiting{Worker: "w2", Reason: fault.ReasonEvicted, Message: "x"}), "another worker's")
	require.Equal(t, []any{string(fault.ReasonUnschedulable), "no node takes it"}, []any{s.Reason, s.Message})
	require.Equal(t, begun, s.StartingAt)
	require.Equal(t, uint32(1), s.Attempt)
	require.Equal(t, []any{s.Reason, s.Message}, []any{sandbox.FromView(s.View()).Reason, sandbox.FromView(s.View()).Message})

	do(sandbox.Start{Worker: "w1", Attempt: 2})
	require.Empty(t, s.Reason+s.Message, "another start waits for something of its own")
	require.NotEqual(t, begun, s.StartingAt)
	do(waits)
	ready := s
	do(sandbox.Destroy{Reason: sandbox.ReasonRequested})
	require.Equal(t, []any{sandbox.ReasonRequested, ""}, []any{s.Reason, s.Message})
	s = ready
	do(sandbox.MarkReady{Worker: "w1"})
	require.Empty(t, s.Reason+s.Message)
	require.Zero(t, do(waits), "it waits for nothing any more")
}
