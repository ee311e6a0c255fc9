package sandbox_test

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

const (
	sandboxID = "5d6f1a4e-7c1b-4f5e-9a57-0d8f0a1b2c3d"
	execID    = "0b8f3c2a-1d4e-4b6f-8c7d-9e0f1a2b3c4d"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// record makes of decided bodies what the log would give back for them: encoded and decoded.
func record(t require.TestingT, agg subject.Aggregate, after eventlog.Tail, at time.Time, cause string, bodies ...proto.Message) []envelope.Recorded {
	var out []envelope.Recorded
	meta := sandbox.CommandMeta{ID: cause, Actor: "dev", Time: at, Tenant: agg.Tenant}
	for _, e := range sandbox.Events(meta, bodies...) {
		msg, digest, err := envelope.Encode(agg.Subject(), e, after.Digest)
		require.NoError(t, err)
		r, err := envelope.Decode(agg.Subject(), after.Seq+1, msg.Header, msg.Data)
		require.NoError(t, err)
		after = eventlog.Tail{Seq: after.Seq + 1, Digest: digest}
		out = append(out, r)
	}
	return out
}

func genUsage(t *rapid.T) *commonv1.UsageMetrics {
	if rapid.Bool().Draw(t, "measured") {
		return &commonv1.UsageMetrics{
			CpuMs:           rapid.Uint64Range(0, 1000).Draw(t, "cpu"),
			MemoryPeakBytes: rapid.Uint64Range(0, 1000).Draw(t, "peak"),
			MemoryAvgBytes:  rapid.Uint64Range(0, 1000).Draw(t, "avg"),
		}
	}
	return nil
}

func genCommand(t *rapid.T, at time.Time) (string, sandbox.Command) {
	id := fmt.Sprintf("command-%d", rapid.IntRange(0, 3).Draw(t, "command"))
	worker := rapid.SampledFrom([]string{"w1", "w2"}).Draw(t, "worker")
	switch rapid.IntRange(0, 20).Draw(t, "kind") {
	case 0:
		return id, sandbox.Create{
			CommandID: id, At: at, SandboxID: sandboxID, Image: "i", Placement: &eventsv1.Placement{Worker: worker},
			Labels: rapid.SampledFrom([]map[string]string{nil, {"a": "1"}}).Draw(t, "labels"),
			Limits: &eventsv1.Limits{
				MaxRuntimeMs: rapid.Uint64().Draw(t, "runtime"), IdleTimeoutMs: rapid.SampledFrom([]uint64{0, 1, 60_000}).Draw(t, "idle timeout"),
			},
		}
	case 1:
		return id, sandbox.Reschedule{Placement: &eventsv1.Placement{Worker: worker}}
	case 2:
		return id, sandbox.Start{Worker: worker, Attempt: rapid.Uint32Range(0, 3).Draw(t, "attempt")}
	case 3:
		return id, sandbox.MarkReady{Worker: worker, RuntimeID: "r", Endpoint: genEndpoint(t)}
	case 4:
		return id, sandbox.Fail{At: at, Reason: fault.ReasonRuntimeFailed, Usage: genUsage(t)}
	case 5:
		return id, sandbox.Stop{}
	case 6:
		return id, sandbox.MarkStopped{At: at, Usage: genUsage(t)}
	case 7:
		return id, sandbox.Destroy{Reason: sandbox.ReasonExpired}
	case 8:
		return id, sandbox.MarkDestroyed{At: at, Usage: genUsage(t), DeleteAfter: at.Add(time.Hour)}
	case 11:
		return id, sandbox.Restart{At: at}
	case 12:
		return id, sandbox.GiveUp{Reason: fault.ReasonRuntimeFailed, Message: "no"}
	case 10:
		return id, sandbox.Extend{At: at, ExpiresAt: at.Add(time.Duration(rapid.IntRange(-60, 600).Draw(t, "extension")) * time.Second)}
	case 13:
		return id, sandbox.Use{At: at}
	case 14:
		return id, sandbox.Used{At: at.Add(-time.Duration(rapid.IntRange(0, 60).Draw(t, "ago")) * time.Second)}
	case 15:
		return id, sandbox.Label{Labels: rapid.MapOfN(rapid.SampledFrom([]string{"a", "b"}), rapid.SampledFrom([]string{"1", "2"}), 0, 2).Draw(t, "labels")}
	case 16:
		return id, sandbox.TakeSnapshot{CommandID: id, Image: "snap"}
	case 17:
		return id, sandbox.MarkSnapshotted{Sequence: rapid.Uint64Range(1, 20).Draw(t, "sequence"), Digest: "d"}
	case 18:
		return id, sandbox.FailSnapshot{Sequence: rapid.Uint64Range(1, 20).Draw(t, "sequence"), Reason: fault.ReasonDiskFull}
	case 19:
		return id, sandbox.SetEgress{Egress: rapid.SampledFrom([]*eventsv1.Egress{
			nil, {}, {Allow: []*eventsv1.EgressRule{{Host: "a.example"}}}, {Allow: []*eventsv1.EgressRule{{Host: "none"}}},
		}).Draw(t, "egress")}
	case 9:
		return id, sandbox.MarkWaiting{
			Worker: worker, Reason: rapid.SampledFrom([]fault.Reason{"", fault.ReasonUnschedulable}).Draw(t, "reason"),
			Message: rapid.SampledFrom([]string{"", "no node"}).Draw(t, "message"),
		}
	}
	return id, sandbox.SampleUsage{At: at, Usage: genUsage(t)}
}

// genEndpoint is that of a keeper or of an agent.
func genEndpoint(t *rapid.T) *eventsv1.Endpoint {
	if rapid.Bool().Draw(t, "keeper") {
		return nil
	}
	return &eventsv1.Endpoint{
		Address: "10.0.0.1:7070", Runtime: "sandbox-1", Uid: rapid.SampledFrom([]string{"u1", "u2"}).Draw(t, "uid"), KeySha256: []byte{1},
	}
}

// next says by name which states may follow which: written apart from the code under test.
var next = map[string]string{
	"":          "requested",
	"requested": "requested scheduled starting failed destroying",
	"scheduled": "scheduled starting failed destroying",
	"starting":  "starting ready stopped failed destroying",
	"ready":     "ready stopping failed destroying",
	"stopping":  "stopping stopped failed destroying",
	"stopped":   "stopped starting failed destroying",
	"failed":    "failed destroying", "destroying": "destroyed", "destroyed": "-",
}

func TestNoSequenceOfCommandsReachesAnIllegalState(t *testing.T) {
	agg := subject.Sandbox("acme", sandboxID)
	rapid.Check(t, func(t *rapid.T) {
		state := sandbox.Sandbox{ID: sandboxID, Tenant: "acme"}
		h := eventlog.History{Aggregate: agg}
		at := start
		for range rapid.IntRange(1, 40).Draw(t, "length") {
			at = at.Add(time.Duration(rapid.IntRange(-5, 60).Draw(t, "seconds")) * time.Second)
			id, c := genCommand(t, at)
			bodies, err := sandbox.Decide(state, c)
			again, errAgain := sandbox.Decide(state, c)
			require.Equal(t, err, errAgain)
			require.Empty(t, cmp.Diff(bodies, again, protocmp.Transform()), "decide is deterministic")
			if err != nil {
				require.Empty(t, bodies)
				require.NotEqual(t, fault.Internal, fault.CodeOf(err))
				continue
			}
			require.LessOrEqual(t, len(bodies), 1, "what is decided together is one event")
			for _, r := range record(t, agg, h.Tail(), at, id, bodies...) {
				after, err := state.Evolve(r)
				require.NoError(t, err, "evolve takes what decide gives")
				require.Contains(t, next[state.State], after.State)
				require.GreaterOrEqual(t, after.Uptime, state.Uptime)
				if after.State == sandbox.Stopped {
					require.True(t, after.RunningSince.IsZero() && after.Endpoint == nil)
				}
				if state.State == sandbox.Stopped {
					require.Equal(t, state.Uptime, after.Uptime, "no time counts while it is stopped")
					require.Equal(t, state.Usage.GetCpuMs(), after.Usage.GetCpuMs())
				}
				if after.State == sandbox.Stopped && state.State == sandbox.Starting {
					require.True(t, state.Restarting(), "only what was stopped can be left stopped")
				}
				require.GreaterOrEqual(t, after.Usage.GetCpuMs(), state.Usage.GetCpuMs())
				if l, ok := c.(sandbox.Label); ok {
					require.True(t, maps.Equal(l.Labels, after.Labels))
					require.True(t, maps.Equal(l.Labels, after.View().GetRequested().GetLabels()), "who reads views finds them by these")
				} else if state.Exists() {
					require.True(t, maps.Equal(state.Labels, after.Labels), "nothing else changes labels")
				}
				state = after
				h.Events = append(h.Events, r)
			}
			if _, sample := c.(sandbox.SampleUsage); !sample {
				repeated, err := sandbox.Decide(state, c)
				require.NoError(t, err)
				require.Empty(t, repeated, "a command that was carried out decides nothing: %T", c)
			}
		}
		folded, err := sandbox.Fold(h)
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(state, folded, protocmp.Transform()), "replay gives the same state")
		require.Empty(t, cmp.Diff(state.View(), sandbox.FromView(state.View()).View(), protocmp.Transform()))
	})
}

func genExecCommand(t *rapid.T, at time.Time) (string, sandbox.ExecCommand) {
	id := fmt.Sprintf("command-%d", rapid.IntRange(0, 1).Draw(t, "command"))
	spec := &eventsv1.ExecSpec{Command: "true", SessionId: "s"}
	if id == "command-1" {
		spec.Terminal = &commonv1.TerminalSize{Columns: 80, Rows: 24}
	}
	switch rapid.IntRange(0, 5).Draw(t, "kind") {
	case 0:
		return id, sandbox.RequestExec{CommandID: id, SandboxID: sandboxID, ExecID: execID, Spec: spec, RequestedAt: at}
	case 1:
		return id, sandbox.StartExec{CommandID: id, SandboxID: sandboxID, ExecID: execID, Spec: spec, Worker: "w1", RequestedAt: at}
	case 2:
		reason := rapid.SampledFrom([]string{sandbox.ReasonExited, sandbox.ReasonCancelled, sandbox.ReasonOOMKilled}).Draw(t, "reason")
		return sandbox.EndCommand(execID), sandbox.CompleteExec{Completed: &eventsv1.ExecCompleted{Reason: reason}}
	case 3:
		return sandbox.EndCommand(execID), sandbox.LoseExec{Lost: &eventsv1.ExecLost{Reason: "sandbox_lost"}}
	case 4:
		size := &commonv1.TerminalSize{Columns: rapid.Uint32Range(80, 82).Draw(t, "columns"), Rows: 24}
		return fmt.Sprintf("resize-%d", at.Unix()), sandbox.ResizeExec{Size: size}
	}
	return id, sandbox.RequestCancel{Reason: "client_gone"}
}

func TestAnExecStartsAndEndsAtMostOnce(t *testing.T) {
	agg := subject.Exec("acme", sandboxID, execID)
	rapid.Check(t, func(t *rapid.T) {
		state := sandbox.Exec{ID: execID, Sandbox: sandboxID, Tenant: "acme"}
		h := eventlog.History{Aggregate: agg}
		at, starts, ends := start, 0, 0
		for range rapid.IntRange(1, 30).Draw(t, "length") {
			at = at.Add(time.Second)
			id, c := genExecCommand(t, at)
			bodies, err := sandbox.DecideExec(state, c)
			again, errAgain := sandbox.DecideExec(state, c)
			require.Equal(t, err, errAgain)
			require.Empty(t, cmp.Diff(bodies, again, protocmp.Transform()), "decide is deterministic")
			if err != nil {
				require.Empty(t, bodies)
				continue
			}
			for _, r := range record(t, agg, h.Tail(), at, id, bodies...) {
				switch b := r.Body.(type) {
				case *eventsv1.ExecStarted:
					starts++
				case *eventsv1.ExecCompleted:
					ends++
					require.Equal(t, sandbox.UsageEventID(execID), b.GetUsageEventId())
					require.True(t, state.Started() || b.GetReason() != sandbox.ReasonExited, "only what has run can exit")
				case *eventsv1.ExecLost:
					ends++
				}
				state, err = state.Evolve(r)
				require.NoError(t, err)
				h.Events = append(h.Events, r)
			}
			repeated, err := sandbox.DecideExec(state, c)
			require.NoError(t, err)
			require.Empty(t, repeated)
		}
		require.LessOrEqual(t, starts, 1)
		require.LessOrEqual(t, ends, 1)
		require.Equal(t, ends == 1, state.Over())
		folded, err := sandbox.FoldExec(h)
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(state, folded, protocmp.Transform()), "replay gives the same state")
		require.Empty(t, cmp.Diff(state.View(), sandbox.ExecFromView(state.View()).View(), protocmp.Transform()))
	})
}

// However it is used, a sandbox is idle no earlier than its timeout behind its last use, and half of that or a 500th of its age later at most; and what is
// recorded of its use is bounded by time, not by how often it is used.
func TestASandboxIsIdleBehindItsLastUse(t *testing.T) {
	agg := subject.Sandbox("acme", sandboxID)
	rapid.Check(t, func(t *rapid.T) {
		timeout := time.Duration(rapid.IntRange(10, 3600).Draw(t, "timeout")) * time.Second
		h, state := eventlog.History{Aggregate: agg}, sandbox.Sandbox{ID: sandboxID, Tenant: "acme"}
		at, recorded := start, 0
		do := func(c sandbox.Command) {
			bodies, err := sandbox.Decide(state, c)
			require.NoError(t, err)
			for _, r := range record(t, agg, h.Tail(), at, fmt.Sprint(len(h.Events)), bodies...) {
				state, err = state.Evolve(r)
				require.NoError(t, err)
				h.Events = append(h.Events, r)
			}
			recorded += len(bodies)
		}
		do(sandbox.Create{
			CommandID: "c", At: at, SandboxID: sandboxID, Image: "i", Placement: &eventsv1.Placement{Worker: "w1"},
			Limits: &eventsv1.Limits{IdleTimeoutMs: uint64(timeout.Milliseconds())},
		})
		require.False(t, state.Idle(at.Add(time.Hour*1000)), "what does not run is not idle")
		do(sandbox.Start{Worker: "w1", Attempt: 1})
		at = at.Add(time.Second)
		do(sandbox.MarkReady{Worker: "w1", RuntimeID: "r"})
		last := at
		for range rapid.IntRange(0, 60).Draw(t, "uses") {
			at = at.Add(time.Duration(rapid.Int64Range(0, int64(timeout)).Draw(t, "pause")))
			last = at
			if rapid.Bool().Draw(t, "seen at once") {
				do(sandbox.Use{At: at})
			} else {
				do(sandbox.Used{At: at}) // found later in the log
			}
		}
		late := max(timeout/2, last.Sub(state.CreatedAt)/500)
		require.False(t, state.Idle(last.Add(timeout-time.Nanosecond)))
		require.True(t, state.Idle(last.Add(timeout+late)))
		require.False(t, sandbox.FromView(state.View()).Idle(last.Add(timeout-time.Nanosecond)), "views tell the same")
		require.True(t, sandbox.FromView(state.View()).Idle(last.Add(timeout+late)))

		before := recorded
		for range 1000 {
			do(sandbox.Use{At: at})
		}
		require.LessOrEqual(t, recorded-before, 1)
		do(sandbox.Destroy{Reason: sandbox.ReasonIdle})
		do(sandbox.Use{At: at.Add(timeout)})
		require.Equal(t, sandbox.Destroying, state.State)
		require.Equal(t, sandbox.ReasonIdle, state.Reason)
		require.False(t, state.Idle(at.Add(time.Hour*1000)), "its end is decided once")
	})
}
