package runner

import (
	"bytes"
	"context"
	"crypto/sha256"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/topology"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

func exited(code int32) *toolboxv1.End {
	return &toolboxv1.End{ExitCode: code, Reason: sandbox.ReasonExited, UsageMethod: "cgroup"}
}

// hello is a program that writes to both streams.
func hello(_ context.Context, p *process) *toolboxv1.End {
	p.write(1, []byte("out\n"))
	p.write(2, []byte("err\n"))
	return exited(3)
}

// forever runs until it is killed.
func forever(ctx context.Context, p *process) *toolboxv1.End {
	p.write(1, []byte("begun\n"))
	<-ctx.Done()
	return exited(0)
}

func spec() *eventsv1.ExecSpec { return &eventsv1.ExecSpec{Command: "sh", Args: []string{"-c", "x"}} }

func TestRunsToItsEnd(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.markReady()
	k := startKeeper(t, r.state, r.box, hello)
	r.service(nil)
	x := r.exec(spec(), nil).send()
	o := x.outcome()
	require.Nil(t, o.GetError())
	require.NotZero(t, o.GetSequence())
	s := x.wait()
	require.Equal(t, []string{"ExecStarted", "ExecCompleted"}, x.types())
	c := s.Completed
	require.Equal(t, int32(3), c.GetExitCode())
	require.Equal(t, sandbox.ReasonExited, c.GetReason())
	require.Equal(t, uint64(7), c.GetUsage().GetCpuMs())
	require.Equal(t, "cgroup", c.GetUsageMethod())
	require.Equal(t, sandbox.UsageEventID(x.agg.ID), c.GetUsageEventId())
	require.Equal(t, ids.Usage(x.history().Events[1].ID), c.GetUsageEventId())
	sum := sha256.Sum256([]byte("out\n"))
	require.Equal(t, sum[:], c.GetStdout().GetSha256())
	require.Equal(t, uint64(2), c.GetLastChunk())
	require.Equal(t, map[string][]byte{"stdout": []byte("out\n"), "stderr": []byte("err\n")}, x.output())
	require.Eventually(t, func() bool { p, _ := k.find(x.agg.ID); k.mu.Lock(); defer k.mu.Unlock(); return p.forgets == 1 }, 20*time.Second, time.Millisecond)

	// The same command again gives the same outcome and starts nothing.
	x.send()
	require.Nil(t, x.outcome().GetError())
	require.Equal(t, 1, k.started(x.agg.ID))
	require.Len(t, x.history().Events, 2)

	// Another command for the same exec is refused.
	x.cmd.CommandId = ids.New()
	x.send()
	require.Equal(t, "exec_exists", x.outcome().GetError().GetReason())
}

func TestServiceStoppedAtRandomPointsLosesNothing(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.markReady()
	want := map[uint32][]byte{}
	for i, n := range []int{0, 6 << 20, 2 << 20} {
		b := make([]byte, n)
		for j := range b {
			b[j] = byte(rand.Uint32())
		}
		want[uint32(i)] = b
	}
	stops := make(chan struct{}, 100)
	k := startKeeper(t, r.state, r.box, func(_ context.Context, p *process) *toolboxv1.End {
		at := map[uint32]int{}
		for i := 0; at[1] < len(want[1]) || at[2] < len(want[2]); i++ {
			s := uint32(1 + rand.IntN(2))
			n := min(rand.IntN(40_000), len(want[s])-at[s])
			p.write(s, want[s][at[s]:at[s]+n])
			at[s] += n
			if i%40 == 39 {
				<-stops
			}
		}
		return exited(0)
	})
	x := r.exec(spec(), map[string]string{"A": "1"}).send()
	restarts := 0
	for !x.state().Over() {
		s := r.service(nil)
		select {
		case stops <- struct{}{}:
		default:
		}
		deadline := time.After(time.Duration(20+rand.IntN(60)) * time.Millisecond)
		<-deadline
		s.stop()
		restarts++
		require.Less(t, restarts, 200)
	}
	require.Greater(t, restarts, 3)
	require.Equal(t, []string{"ExecStarted", "ExecCompleted"}, x.types())
	require.Equal(t, 1, k.started(x.agg.ID))
	got := x.output()
	require.True(t, bytes.Equal(want[1], got["stdout"]))
	require.True(t, bytes.Equal(want[2], got["stderr"]))
	sum := sha256.Sum256(want[1])
	require.Equal(t, sum[:], x.state().Completed.GetStdout().GetSha256())
}

func TestTwoServicesRunItOnce(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.markReady()
	k := startKeeper(t, r.state, r.box, func(_ context.Context, p *process) *toolboxv1.End {
		for range 200 {
			p.write(1, bytes.Repeat([]byte("x"), 1000))
		}
		return exited(0)
	})
	a, b := r.service(nil), r.service(nil)
	var all []*exec
	for range 10 {
		x := r.exec(spec(), nil)
		// Both get it, as when the acknowledgement of the first is late.
		for _, s := range []*service{a, b} {
			go func() { _ = s.runner.Handle(t.Context(), x.message()) }()
		}
		all = append(all, x)
	}
	for _, x := range all {
		x.wait()
		require.Equal(t, []string{"ExecStarted", "ExecCompleted"}, x.types())
		require.Equal(t, 1, k.started(x.agg.ID))
		require.Len(t, x.output()["stdout"], 200_000)
	}
}

func TestLostWhenTheToolboxDies(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.markReady()
	k := startKeeper(t, r.state, r.box, forever)
	r.service(nil)
	x := r.exec(spec(), nil).send()
	require.Eventually(t, func() bool { return len(x.output()["stdout"]) == 6 }, 10*time.Second, 5*time.Millisecond)
	k.die()
	s := x.wait()
	require.Equal(t, []string{"ExecStarted", "ExecLost"}, x.types())
	require.Equal(t, "sandbox_lost", s.Lost.GetReason())
	require.Equal(t, uint64(6), s.Lost.GetStdoutBytes())
	require.Equal(t, uint64(2), s.Lost.GetLastChunk(), "the seal behind the output is one too")
	require.Equal(t, sandbox.UsageEventID(x.agg.ID), s.Lost.GetUsageEventId())
}

func TestToolboxThatComesBackIsNoLoss(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.markReady()
	release := make(chan struct{})
	k := startKeeper(t, r.state, r.box, func(_ context.Context, p *process) *toolboxv1.End {
		p.write(1, []byte("begun\n"))
		<-release
		return exited(0)
	})
	r.service(func(c *Config) { c.ToolboxGrace = 20 * time.Second })
	x := r.exec(spec(), nil).send()
	require.Eventually(t, func() bool { return len(x.output()["stdout"]) == 6 }, 10*time.Second, 5*time.Millisecond)
	k.die()
	k.listen(t)
	close(release)
	require.Equal(t, sandbox.ExecCompleted, x.wait().State)
	require.Equal(t, "begun\n", string(x.output()["stdout"]))
}

func TestBusyToolboxIsAskedAgain(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.markReady()
	k := startKeeper(t, r.state, r.box, hello)
	k.busy.Store(3)
	r.service(nil)
	x := r.exec(spec(), map[string]string{"A": "1"}).send()
	require.Equal(t, sandbox.ReasonExited, x.wait().Completed.GetReason())
	require.Equal(t, 1, k.started(x.agg.ID))
}

func TestCancelAndTimeout(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.markReady()
	startKeeper(t, r.state, r.box, forever)
	r.service(nil)
	x := r.exec(spec(), nil).send()
	require.Nil(t, x.outcome().GetError())
	x.cancel()
	require.Nil(t, x.outcome().GetError())
	s := x.wait()
	require.Equal(t, []string{"ExecStarted", "ExecCancelRequested", "ExecCompleted"}, x.types())
	require.Equal(t, sandbox.ReasonCancelled, s.Completed.GetReason())
	require.Equal(t, int32(128+15), s.Completed.GetExitCode())
	// Once more changes nothing.
	x.cancel()
	require.Nil(t, x.outcome().GetError())
	require.Len(t, x.history().Events, 3)

	limited := spec()
	limited.TimeoutMs = 50
	y := r.exec(limited, nil).send()
	require.Equal(t, sandbox.ReasonTimedOut, y.wait().Completed.GetReason())
	require.Equal(t, "begun\n", string(y.output()["stdout"]))

	over := spec()
	over.TimeoutMs = uint64((25 * time.Hour).Milliseconds())
	z := r.exec(over, nil).send()
	o := z.outcome()
	require.Equal(t, "invalid_argument", o.GetError().GetCode())
	require.Contains(t, o.GetError().GetFields()["timeout"], "24h")
	require.Empty(t, z.history().Events)

	unknown := r.exec(spec(), nil)
	unknown.cancel()
	require.Equal(t, "exec_not_found", unknown.outcome().GetError().GetReason())
}

func TestWaitsForItsSandbox(t *testing.T) {
	r := newRig(t)
	r.starting()
	s := r.service(nil)
	x := r.exec(spec(), map[string]string{"A": "1"}).send()
	require.Nil(t, x.outcome().GetError())
	require.Equal(t, []string{"ExecRequested"}, x.types())
	// A restart while it waits keeps it, its environment included.
	s.stop()
	r.service(nil)
	k := startKeeper(t, r.state, r.box, hello)
	r.markReady()
	ready := time.Now()
	x.wait()
	require.Equal(t, []string{"ExecRequested", "ExecStarted", "ExecCompleted"}, x.types())
	require.Less(t, time.Since(ready), 20*time.Second)
	p, err := k.find(x.agg.ID)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"A": "1"}, p.start.GetEnv())
	// Nothing is left of its command.
	c, err := r.JS.Consumer(t.Context(), topology.StreamCommands, topology.ConsumerExec("w1"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return drained(t, c) }, 10*time.Second, 20*time.Millisecond)
}

func drained(t *testing.T, c jetstream.Consumer) bool {
	i, err := c.Info(t.Context())
	require.NoError(t, err)
	return i.NumAckPending == 0 && i.NumPending == 0
}

func TestNeverStarted(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(*rig, *exec)
		reason  string
		config  func(*Config)
	}{
		"its sandbox fails": {
			happens: func(r *rig, _ *exec) { r.sandbox(sandbox.Fail{Reason: "image_not_found", Message: "no such image"}) },
			reason:  sandbox.ReasonStartFailed,
		},
		"its sandbox is destroyed": {
			happens: func(r *rig, _ *exec) { r.sandbox(sandbox.Destroy{Reason: "requested"}) }, reason: sandbox.ReasonSandboxDestroyed,
		},
		"it is cancelled":        {happens: func(_ *rig, x *exec) { x.cancel() }, reason: sandbox.ReasonCancelled},
		"its sandbox takes long": {reason: sandbox.ReasonTimedOut, config: func(c *Config) { c.StartDeadline = 200 * time.Millisecond }},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.starting()
			r.service(c.config)
			x := r.exec(spec(), nil).send()
			require.Nil(t, x.outcome().GetError())
			if c.happens != nil {
				c.happens(r, x)
			}
			s := x.wait()
			require.Equal(t, c.reason, s.Completed.GetReason())
			require.NotZero(t, s.Completed.GetExitCode())
			require.NotEmpty(t, s.Completed.GetMessage())
			require.False(t, s.Started())
		})
	}
}

func TestRefused(t *testing.T) {
	r := newRig(t)
	s := r.service(func(c *Config) { c.MaxExecsPerSandbox = 2 })
	x := r.exec(spec(), nil).send()
	require.Equal(t, "sandbox_not_found", x.outcome().GetError().GetReason())
	require.Empty(t, x.history().Events)

	r.starting()
	r.markReady()
	startKeeper(t, r.state, r.box, forever)
	a, b := r.exec(spec(), nil).send(), r.exec(spec(), nil).send()
	require.Nil(t, a.outcome().GetError())
	require.Nil(t, b.outcome().GetError())
	over := r.exec(spec(), nil).send()
	o := over.outcome()
	require.Equal(t, "too_many_execs", o.GetError().GetReason())
	require.Positive(t, o.GetError().GetRetryAfterSeconds())
	require.Empty(t, over.history().Events)
	a.cancel()
	a.wait()
	require.Eventually(t, func() bool { return s.runner.find(a.agg.ID) == nil }, 20*time.Second, time.Millisecond)
	again := r.exec(spec(), nil).send()
	require.Nil(t, again.outcome().GetError())

	missing := spec()
	missing.Command = "missing"
	b.cancel()
	b.wait()
	require.Eventually(t, func() bool { return s.runner.find(b.agg.ID) == nil }, 20*time.Second, time.Millisecond)
	m := r.exec(missing, nil).send()
	end := m.wait()
	require.Equal(t, sandbox.ReasonStartFailed, end.Completed.GetReason())
	require.Equal(t, int32(127), end.Completed.GetExitCode())
	require.Eventually(t, func() bool { return s.runner.find(m.agg.ID) == nil }, 20*time.Second, time.Millisecond)

	r.sandbox(sandbox.Destroy{Reason: "requested"})
	s.runner.ready.forget(boxOf(r))
	gone := r.exec(spec(), nil).send()
	require.Equal(t, "sandbox_destroyed", gone.outcome().GetError().GetReason())
}

func TestCrashBetweenFenceAndStart(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.markReady()
	k := startKeeper(t, r.state, r.box, hello)
	x := r.exec(spec(), map[string]string{"A": "1"})
	x.fenced()
	// Its command was not acknowledged, so it is there.
	x.send()
	r.service(nil)
	require.Equal(t, sandbox.ExecCompleted, x.wait().State)
	require.Equal(t, 1, k.started(x.agg.ID))

	// Without its command it cannot be started and nothing is made up.
	y := r.exec(spec(), map[string]string{"A": "1"})
	y.fenced()
	r.service(func(c *Config) { c.CommandWait = 100 * time.Millisecond })
	require.Equal(t, "exec_lost", y.wait().Lost.GetReason())
	require.Zero(t, k.started(y.agg.ID))
}

func TestEnvironmentStaysSecret(t *testing.T) {
	const canary = "canary-5b1f0c"
	r := newRig(t)
	r.starting()
	r.markReady()
	k := startKeeper(t, r.state, r.box, hello)
	r.service(nil)
	x := r.exec(spec(), map[string]string{"TOKEN": canary}).send()
	x.wait()
	p, err := k.find(x.agg.ID)
	require.NoError(t, err)
	require.Equal(t, canary, p.start.GetEnv()["TOKEN"])
	// One that cannot be opened fails without a word about it.
	broken := r.exec(spec(), map[string]string{"TOKEN": canary})
	broken.cmd.GetStart().SealedEnv[3] ^= 1
	broken.send()
	require.Equal(t, sandbox.ReasonStartFailed, broken.wait().Completed.GetReason())
	require.NotContains(t, r.logs.String(), canary)
	for _, name := range []string{topology.StreamEvents, topology.StreamCommands, topology.StreamOutput, topology.StreamDead} {
		st, err := r.JS.Stream(t.Context(), name)
		require.NoError(t, err)
		info, err := st.Info(t.Context())
		require.NoError(t, err)
		for seq := info.State.FirstSeq; seq > 0 && seq <= info.State.LastSeq; seq++ {
			m, err := st.GetMsg(t.Context(), seq)
			if err != nil {
				continue // acknowledged work is gone
			}
			require.NotContains(t, string(m.Data), canary)
			for h, v := range m.Header {
				require.False(t, slices.ContainsFunc(v, func(s string) bool { return strings.Contains(s, canary) }), h)
			}
		}
	}
}

func TestServerRestartLosesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: waits for a reconnect")
	}
	r := newRig(t)
	r.starting()
	r.markReady()
	gate := make(chan struct{})
	piece := bytes.Repeat([]byte("0123456789abcdef"), 1000)
	startKeeper(t, r.state, r.box, func(_ context.Context, p *process) *toolboxv1.End {
		for range 100 {
			p.write(1, piece)
		}
		<-gate
		for range 100 {
			p.write(1, piece)
		}
		return exited(0)
	})
	r.service(nil)
	x := r.exec(spec(), nil).send()
	require.Eventually(t, func() bool { return len(x.output()["stdout"]) > 1000 }, 10*time.Second, 5*time.Millisecond)
	r.Stop()
	close(gate)
	r.Resume()
	require.Eventually(t, r.NC.IsConnected, 20*time.Second, 10*time.Millisecond)
	require.Equal(t, sandbox.ExecCompleted, x.wait().State)
	require.True(t, bytes.Equal(bytes.Repeat(piece, 200), x.output()["stdout"]))
}
