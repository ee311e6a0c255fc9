package sandbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
)

// longLived is a sandbox of the shortest idle timeout that is ready.
func longLived(t *testing.T, more ...sandbox.Command) sandbox.Sandbox {
	t.Helper()
	s := sandbox.Sandbox{ID: sandboxID, Tenant: "acme"}
	for _, c := range append([]sandbox.Command{
		sandbox.Create{
			CommandID: "c", At: start, SandboxID: sandboxID, Image: "i", Placement: &eventsv1.Placement{Worker: "w1"},
			Limits: &eventsv1.Limits{IdleTimeoutMs: 10_000, MaxRuntimeMs: uint64((365 * 24 * time.Hour).Milliseconds())},
		},
		sandbox.Start{Worker: "w1", Attempt: 1},
		sandbox.MarkReady{Worker: "w1", RuntimeID: "r"},
	}, more...) {
		s = behind(t, s, start, c)
	}
	return s
}

func behind(t *testing.T, s sandbox.Sandbox, at time.Time, c sandbox.Command) sandbox.Sandbox {
	t.Helper()
	bodies, err := sandbox.Decide(s, c)
	require.NoError(t, err)
	for _, b := range bodies {
		s, err = s.Evolve(envelope.Recorded{Meta: envelope.Meta{Time: at}, Seq: s.Seq + 1, Body: b})
		require.NoError(t, err)
	}
	return s
}

// The log reads a history of 100,000 events. One that is used every five seconds for three months stays far below.
func TestTheHistoryOfASandboxInConstantUseStaysShort(t *testing.T) {
	for name, use := range map[string]func(s sandbox.Sandbox, at time.Time) sandbox.Command{
		"by calls": func(_ sandbox.Sandbox, at time.Time) sandbox.Command { return sandbox.Use{At: at} },
		// The reconciler asks only once it seems to be idle.
		"by a command that runs": func(s sandbox.Sandbox, at time.Time) sandbox.Command { return sandbox.Used{At: at.Add(s.UseGrain(at))} },
	} {
		s := longLived(t)
		for at := start; at.Before(start.AddDate(0, 3, 0)); at = at.Add(5 * time.Second) {
			if name == "by a command that runs" && !s.Idle(at) {
				continue
			}
			s = behind(t, s, at, use(s, at))
		}
		t.Logf("%s: %d events after three months", name, s.Events)
		require.Less(t, s.Events, sandbox.MaxEvents/2, name)
		require.Greater(t, s.Events, 1000, name)
	}
}

// Whatever its owner may repeat is refused before the history is full, and its end never is.
func TestAHistoryHasRoomForItsEnd(t *testing.T) {
	at := start.Add(time.Hour)
	full := func(s sandbox.Sandbox) sandbox.Sandbox { s.Events = sandbox.MaxEvents; return s }
	ready, stopped := longLived(t), longLived(t, sandbox.Stop{}, sandbox.MarkStopped{At: at})
	for name, c := range map[string]struct {
		in sandbox.Sandbox
		do sandbox.Command
	}{
		"more time": {ready, sandbox.Extend{At: at, ExpiresAt: ready.ExpiresAt.Add(time.Second)}},
		"a start":   {stopped, sandbox.Restart{At: at}},
	} {
		_, err := sandbox.Decide(full(c.in), c.do)
		require.True(t, fault.Is(err, fault.ReasonQuota), "%s: %v", name, err)
		in := c.in
		in.Events = sandbox.MaxEvents - 1
		bodies, err := sandbox.Decide(in, c.do)
		require.NoError(t, err, name)
		require.Len(t, bodies, 1, name)
	}
	for name, c := range map[string]struct {
		in sandbox.Sandbox
		do sandbox.Command
	}{
		"a stop": {ready, sandbox.Stop{}}, "an end": {ready, sandbox.Destroy{}}, "an end of what is stopped": {stopped, sandbox.Destroy{}},
		"the same time": {ready, sandbox.Extend{At: at, ExpiresAt: ready.ExpiresAt}},
	} {
		_, err := sandbox.Decide(full(c.in), c.do)
		require.NoError(t, err, name)
	}
}
