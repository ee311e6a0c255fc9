package sandbox_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
)

// toStopped are the commands up to a sandbox that is stopped at minute 4, having run for two.
func toStopped() []sandbox.Command {
	return []sandbox.Command{
		create(),
		sandbox.Start{Worker: "w1", Attempt: 1},
		sandbox.MarkReady{Worker: "w1"},
		sandbox.Stop{},
		sandbox.MarkStopped{At: minute(4), Usage: cpu(100)},
	}
}

func TestOnlyARunningSandboxIsStoppedAndOnlyAStoppedOneStarted(t *testing.T) {
	all := toStopped()
	ended := []sandbox.Command{create(), sandbox.Destroy{}}
	failed := []sandbox.Command{create(), sandbox.Fail{At: start, Reason: fault.ReasonRuntimeFailed}}
	for name, c := range map[string]struct {
		before  []sandbox.Command
		command sandbox.Command
		// reason of the refusal; empty: it is accepted and decides as many events as events says.
		reason fault.Reason
		events int
	}{
		"stop of what is not there":       {nil, sandbox.Stop{}, fault.ReasonSandboxNotFound, 0},
		"stop before it is ready":         {all[:2], sandbox.Stop{}, fault.ReasonIllegalState, 0},
		"stop of one that runs":           {all[:3], sandbox.Stop{}, "", 1},
		"stop while it stops":             {all[:4], sandbox.Stop{}, "", 0},
		"stop of one that is stopped":     {all, sandbox.Stop{}, "", 0},
		"stop of one being destroyed":     {ended, sandbox.Stop{}, fault.ReasonIllegalState, 0},
		"stop of one that failed":         {failed, sandbox.Stop{}, fault.ReasonIllegalState, 0},
		"start of what is not there":      {nil, sandbox.Restart{At: minute(5)}, fault.ReasonSandboxNotFound, 0},
		"start of one that starts":        {all[:2], sandbox.Restart{At: minute(5)}, "", 0},
		"start of one that runs":          {all[:3], sandbox.Restart{At: minute(5)}, "", 0},
		"start while it stops":            {all[:4], sandbox.Restart{At: minute(5)}, fault.ReasonIllegalState, 0},
		"start of one that is stopped":    {all, sandbox.Restart{At: minute(5)}, "", 1},
		"start once its time is over":     {all, sandbox.Restart{At: start.Add(time.Hour)}, fault.ReasonSandboxExpired, 0},
		"start of one being destroyed":    {ended, sandbox.Restart{At: minute(5)}, fault.ReasonIllegalState, 0},
		"start of one that failed":        {failed, sandbox.Restart{At: minute(5)}, fault.ReasonIllegalState, 0},
		"a first start of a stopped one":  {all, sandbox.Start{Worker: "w1", Attempt: 9}, fault.ReasonIllegalState, 0},
		"giving up a first start":         {all[:2], sandbox.GiveUp{Reason: fault.ReasonRuntimeFailed}, "", 0},
		"giving up without a reason":      {append(slices.Clone(all), sandbox.Restart{At: minute(5)}), sandbox.GiveUp{}, fault.ReasonValidation, 0},
		"stopped again without stopping":  {append(slices.Clone(all), sandbox.Restart{At: minute(5)}), sandbox.MarkStopped{At: minute(6)}, fault.ReasonIllegalState, 0},
		"a sample while it is stopped":    {all, sandbox.SampleUsage{At: minute(9), Usage: cpu(5)}, "", 0},
		"the end of one that is stopped":  {all, sandbox.Destroy{Reason: sandbox.ReasonExpired}, "", 1},
		"more time while it is stopped":   {all, sandbox.Extend{At: minute(5), ExpiresAt: start.Add(2 * time.Hour)}, "", 1},
		"a failure while it was stopping": {all[:4], sandbox.Fail{At: minute(4), Reason: fault.ReasonSandboxLost}, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			bodies, err := sandbox.Decide(life(t, c.before...), c.command)
			require.Len(t, bodies, c.events)
			if c.reason == "" {
				require.NoError(t, err)
				return
			}
			require.True(t, fault.Is(err, c.reason), "%v", err)
		})
	}
}

func TestAStartThatComesToNothingLeavesASandboxStoppedAsItWas(t *testing.T) {
	before := life(t, toStopped()...)
	require.Equal(t, 2*time.Minute, before.Uptime)
	s := life(t, append(toStopped(), sandbox.Restart{At: minute(5)})...)
	require.True(t, s.Restarting())
	require.Equal(t, minute(5), s.OrderedAt)
	require.Equal(t, uint32(2), s.Attempt)
	require.Equal(t, before.CreatedAt, s.CreatedAt)

	s = life(t, append(toStopped(), sandbox.Restart{At: minute(5)}, sandbox.GiveUp{Reason: fault.ReasonDiskFull, Message: "no room"})...)
	require.Equal(t, sandbox.Stopped, s.State)
	require.Equal(t, []any{string(fault.ReasonDiskFull), "no room"}, []any{s.Reason, s.Message})
	require.Equal(t, before.Uptime, s.Uptime)
	require.Equal(t, uint64(100), s.Usage.GetCpuMs())
	require.Equal(t, before.Uptime, s.UptimeAt(minute(500)), "no time counts while it is stopped")

	s = life(t, append(toStopped(), sandbox.Restart{At: minute(5)}, sandbox.GiveUp{Reason: fault.ReasonDiskFull}, sandbox.Restart{At: minute(7)}, sandbox.MarkReady{Worker: "w1"})...)
	require.Equal(t, sandbox.Ready, s.State)
	require.Empty(t, s.Reason+s.Message)
	require.Equal(t, s.Seq, s.ReadySeq)
	require.Equal(t, minute(7), s.OrderedAt)
}

func TestAStoppedSandboxExpires(t *testing.T) {
	s := life(t, toStopped()...)
	require.False(t, s.Expired(s.ExpiresAt.Add(-1)))
	require.True(t, s.Expired(s.ExpiresAt))
	require.False(t, s.Ending())
	s = life(t, append(toStopped(), sandbox.Destroy{Reason: sandbox.ReasonExpired}, sandbox.MarkDestroyed{At: minute(6), DeleteAfter: minute(9)})...)
	require.Equal(t, 2*time.Minute, s.Uptime)
	require.Equal(t, uint64(100), s.Usage.GetCpuMs())
}
