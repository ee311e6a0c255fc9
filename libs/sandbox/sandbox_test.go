package sandbox_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// life carries commands out one after the other, a minute apart, and returns the state behind the last.
func life(t *testing.T, commands ...sandbox.Command) sandbox.Sandbox {
	t.Helper()
	agg := subject.Sandbox("acme", sandboxID)
	var h eventlog.History
	s := sandbox.Sandbox{ID: sandboxID}
	for i, c := range commands {
		bodies, err := sandbox.Decide(s, c)
		require.NoError(t, err)
		h.Events = append(h.Events, record(t, agg, h.Tail(), minute(i), "create", bodies...)...)
		s, err = sandbox.Fold(h)
		require.NoError(t, err)
	}
	return s
}

func minute(i int) time.Time { return start.Add(time.Duration(i) * time.Minute) }

func create() sandbox.Create {
	return sandbox.Create{
		CommandID: "create", At: start, SandboxID: sandboxID, Image: "python", EnvKeys: []string{"B", "A", "B"},
		Limits: &eventsv1.Limits{MaxRuntimeMs: 3_600_000}, Placement: &eventsv1.Placement{Worker: "w1"},
	}
}

func cpu(ms uint64) *commonv1.UsageMetrics { return &commonv1.UsageMetrics{CpuMs: ms} }

func TestUptimeAndUsageLeaveOutThePauseAndSurviveAnUnmeasuredEnd(t *testing.T) {
	s := life(t,
		create(),
		sandbox.Start{Worker: "w1", Attempt: 1},
		sandbox.MarkReady{Worker: "w1"},
		sandbox.Stop{},
		sandbox.MarkStopped{At: minute(4), Usage: cpu(100)},
		sandbox.Restart{At: minute(5)},
		sandbox.MarkReady{Worker: "w1"},
		sandbox.SampleUsage{At: minute(7), Usage: cpu(50)},
		sandbox.Destroy{},
		sandbox.MarkDestroyed{At: minute(9), DeleteAfter: minute(100)},
	)
	require.Equal(t, sandbox.Destroyed, s.State)
	require.Equal(t, 5*time.Minute, s.Uptime)
	require.Equal(t, uint64(150), s.Usage.GetCpuMs())
	require.Equal(t, sandbox.ReasonRequested, s.Reason)
	require.Equal(t, minute(100), s.DeleteAfter)
	require.Equal(t, []string{"A", "B"}, s.EnvKeys)
}

func TestTheRuntimeOfAFailedSandboxEndsWithItsFailure(t *testing.T) {
	s := life(t,
		create(),
		sandbox.Start{Worker: "w1", Attempt: 1},
		sandbox.MarkReady{Worker: "w1"},
		sandbox.Fail{At: minute(3), Reason: fault.ReasonSandboxLost, Message: "gone", Usage: cpu(7)},
		sandbox.Destroy{Reason: sandbox.ReasonRequested},
		sandbox.MarkDestroyed{At: minute(50), DeleteAfter: minute(100)},
	)
	require.Equal(t, time.Minute, s.Uptime)
	require.Equal(t, uint64(7), s.Usage.GetCpuMs())
	require.Equal(t, string(fault.ReasonSandboxLost), s.Reason)
	require.Equal(t, minute(3), s.EndedAt)
}

// Whoever dials by it must not reach what a former run left.
func TestOnlyARunningSandboxHasAnEndpointAndEachRunItsOwn(t *testing.T) {
	first := &eventsv1.Endpoint{Address: "10.0.0.1:7070", Runtime: "sandbox-a", Uid: "u1"}
	second := &eventsv1.Endpoint{Address: "10.0.0.1:7070", Runtime: "sandbox-a", Uid: "u2", KeySha256: []byte{1}}
	commands := []sandbox.Command{
		create(),
		sandbox.Start{Worker: "w1", Attempt: 1},
		sandbox.MarkReady{Worker: "w1", Endpoint: first},
		sandbox.Stop{},
		sandbox.MarkStopped{At: minute(4)},
		sandbox.Restart{At: minute(5)},
		sandbox.MarkReady{Worker: "w1", Endpoint: second},
		sandbox.Destroy{},
		sandbox.MarkDestroyed{At: minute(8), DeleteAfter: minute(9)},
	}
	want := []*eventsv1.Endpoint{nil, nil, first, first, nil, nil, second, second, nil}
	for i := range commands {
		s := life(t, commands[:i+1]...)
		require.Empty(t, cmp.Diff(want[i], s.Endpoint, protocmp.Transform()), "after command %d, in state %s", i, s.State)
		require.Empty(t, cmp.Diff(want[i], sandbox.FromView(s.View()).Endpoint, protocmp.Transform()))
	}
}

func TestExpiryIsCreationAndMaxRuntime(t *testing.T) {
	s := life(t, create())
	require.Equal(t, start.Add(time.Hour), s.ExpiresAt)
	require.False(t, s.Expired(s.ExpiresAt.Add(-1)))
	require.True(t, s.Expired(s.ExpiresAt))
	require.False(t, life(t, create(), sandbox.Destroy{}).Expired(s.ExpiresAt))
}

func TestRefusals(t *testing.T) {
	ready := []sandbox.Command{create(), sandbox.Start{Worker: "w1", Attempt: 1}, sandbox.MarkReady{Worker: "w1"}}
	other := create()
	other.CommandID = "other"
	for name, c := range map[string]struct {
		before  []sandbox.Command
		command sandbox.Command
		reason  fault.Reason
	}{
		"destroy of what is not there":  {nil, sandbox.Destroy{}, fault.ReasonSandboxNotFound},
		"second create":                 {ready, other, fault.ReasonConflict},
		"start by another worker":       {ready[:1], sandbox.Start{Worker: "w2", Attempt: 1}, fault.ReasonConflict},
		"ready without a start":         {ready[:1], sandbox.MarkReady{Worker: "w1"}, fault.ReasonIllegalState},
		"destroyed without destroying":  {ready, sandbox.MarkDestroyed{At: start}, fault.ReasonIllegalState},
		"start of one being destroyed":  {append(ready[:1:1], sandbox.Destroy{}), sandbox.Start{Worker: "w1", Attempt: 1}, fault.ReasonIllegalState},
		"create without what it needs":  {nil, sandbox.Create{}, fault.ReasonValidation},
		"failure without a reason":      {ready, sandbox.Fail{At: start}, fault.ReasonValidation},
		"no command":                    {ready, nil, fault.ReasonValidation},
		"another worker once it starts": {ready[:2], sandbox.Reschedule{Placement: &eventsv1.Placement{Worker: "w2"}}, fault.ReasonIllegalState},
	} {
		t.Run(name, func(t *testing.T) {
			bodies, err := sandbox.Decide(life(t, c.before...), c.command)
			require.Empty(t, bodies)
			require.True(t, fault.Is(err, c.reason), "%v", err)
		})
	}
}

func TestAnUnknownOrForeignEventIsRefused(t *testing.T) {
	s := life(t, create())
	for _, body := range []proto.Message{nil, &eventsv1.ExecStarted{}} {
		after, err := s.Evolve(envelope.Recorded{Meta: envelope.Meta{Type: "x.Y"}, Seq: 9, Body: body})
		require.True(t, fault.Is(err, fault.ReasonUnknownEvent))
		require.Equal(t, s, after)
	}
	_, err := sandbox.Exec{}.Evolve(envelope.Recorded{Body: &eventsv1.SandboxReady{}})
	require.True(t, fault.Is(err, fault.ReasonUnknownEvent))
	_, err = sandbox.Workspace{}.Evolve(envelope.Recorded{Body: &eventsv1.SandboxReady{}})
	require.True(t, fault.Is(err, fault.ReasonUnknownEvent))
}

func TestAWorkspaceIsKeptUntilItsDeleteAfter(t *testing.T) {
	agg := subject.Workspace("acme", sandboxID)
	bodies, err := sandbox.DecideWorkspace(sandbox.Workspace{}, sandbox.ReleaseWorkspace{SandboxID: sandboxID, Worker: "w1", DeleteAfter: minute(10)})
	require.NoError(t, err)
	w, err := sandbox.FoldWorkspace(eventlog.History{Aggregate: agg, Events: record(t, agg, eventlog.Tail{}, start, "c", bodies...)})
	require.NoError(t, err)
	for at, due := range map[time.Time]bool{minute(10).Add(-1): false, minute(10): true} {
		require.Equal(t, due, w.Due(at))
		bodies, err := sandbox.DecideWorkspace(w, sandbox.MarkWorkspaceDeleted{At: at, SandboxID: sandboxID, Reason: sandbox.ReasonDeleteAfter})
		require.Equal(t, due, err == nil)
		require.Equal(t, due, len(bodies) == 1)
	}
	_, err = sandbox.DecideWorkspace(sandbox.Workspace{}, sandbox.MarkWorkspaceDeleted{At: minute(99), SandboxID: sandboxID, Reason: sandbox.ReasonDeleteAfter})
	require.Error(t, err, "never one that was not released")
}

func TestStatusNeverSaysGoneBeforeItIs(t *testing.T) {
	require.Equal(t, computev1.SandboxStatus_SANDBOX_STATUS_UNSPECIFIED, sandbox.Status(sandbox.Destroying))
	require.Equal(t, computev1.SandboxStatus_SANDBOX_STATUS_DESTROYED, sandbox.Status(sandbox.Destroyed))
	require.Equal(t, computev1.SandboxStatus_SANDBOX_STATUS_STARTING, sandbox.Status(sandbox.Requested))
	require.Equal(t, computev1.SandboxStatus_SANDBOX_STATUS_READY, sandbox.Status(sandbox.Ready))
	require.Equal(t, computev1.SandboxStatus_SANDBOX_STATUS_FAILED, sandbox.Status(sandbox.Failed))
}
