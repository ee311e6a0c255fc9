package sandbox_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

func TestASnapshotIsAskedForOnceAndEndsOnce(t *testing.T) {
	agg := subject.Sandbox("acme", sandboxID)
	h := eventlog.History{Aggregate: agg}
	state := sandbox.Sandbox{ID: sandboxID, Tenant: "acme"}
	do := func(id string, c sandbox.Command) error {
		bodies, err := sandbox.Decide(state, c)
		for _, r := range record(t, agg, h.Tail(), start, id, bodies...) {
			state, err = state.Evolve(r)
			require.NoError(t, err)
			h.Events = append(h.Events, r)
		}
		return err
	}
	took := func(id string) error { return do(id, sandbox.TakeSnapshot{CommandID: id, Image: "snap:1"}) }
	require.True(t, fault.Is(took("a"), fault.ReasonSandboxNotFound))
	for _, body := range []proto.Message{
		&eventsv1.SandboxRequested{SandboxId: sandboxID, Placement: &eventsv1.Placement{Worker: "w"}}, &eventsv1.SandboxStarting{Worker: "w", Attempt: 1},
	} {
		for _, r := range record(t, agg, h.Tail(), start, "c", body) {
			var err error
			state, err = state.Evolve(r)
			require.NoError(t, err)
			h.Events = append(h.Events, r)
		}
	}
	require.True(t, fault.Is(took("a"), fault.ReasonIllegalState), "nothing runs yet")
	require.NoError(t, do("r", sandbox.MarkReady{Worker: "w"}))

	require.NoError(t, took("a"))
	first := state.Snapshot
	require.True(t, first.Pending())
	require.Equal(t, "snap:1", first.Image)
	require.NoError(t, took("a"), "delivered once more")
	require.Equal(t, first, state.Snapshot)
	require.True(t, fault.Is(took("b"), fault.ReasonIllegalState), "one at a time")
	require.NoError(t, do("x", sandbox.MarkSnapshotted{Sequence: first.Seq + 1, Digest: "other"}))
	require.True(t, state.Snapshot.Pending(), "the end of another one")

	require.NoError(t, do("x", sandbox.Stop{}))
	require.NoError(t, do("x", sandbox.MarkSnapshotted{Sequence: first.Seq, Digest: "d", Bytes: 7}))
	require.NoError(t, do("x", sandbox.FailSnapshot{Sequence: first.Seq, Reason: fault.ReasonDiskFull}), "too late")
	require.False(t, state.Snapshot.Pending())
	require.Equal(t, "d", state.Snapshot.Digest)
	require.Empty(t, state.Snapshot.Reason)
	require.Equal(t, sandbox.Stopping, state.State)

	require.NoError(t, do("x", sandbox.MarkStopped{At: start}))
	require.True(t, fault.Is(took("b"), fault.ReasonSandboxStopped))
}

func TestASnapshotThatFailedSaysWhyAndMayBeTakenAgain(t *testing.T) {
	s := sandbox.Sandbox{ID: sandboxID, State: sandbox.Ready, Snapshot: sandbox.Snapshot{Seq: 7, CommandID: "a", Image: "x", Count: 1}}
	bodies, err := sandbox.Decide(s, sandbox.FailSnapshot{Sequence: 7, Reason: fault.ReasonDiskFull, Message: "full"})
	require.NoError(t, err)
	for _, r := range record(t, subject.Sandbox("acme", sandboxID), eventlog.Tail{}, start, "c", bodies...) {
		s, err = s.Evolve(r)
		require.NoError(t, err)
	}
	require.Equal(t, string(fault.ReasonDiskFull), s.Snapshot.Reason)
	_, err = sandbox.Decide(s, sandbox.TakeSnapshot{CommandID: "b", Image: "x"})
	require.NoError(t, err)
	s.Snapshot.Count = sandbox.MaxSnapshots
	_, err = sandbox.Decide(s, sandbox.TakeSnapshot{CommandID: "b", Image: "x"})
	require.Equal(t, fault.ResourceExhausted, fault.CodeOf(err))
}
