package keeper_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/cgroup"
	"github.com/sandtrail/sandtrail/toolbox/keeper/keepertest"
	"github.com/sandtrail/sandtrail/toolbox/launch"
)

// family starts children in sessions and a user namespace of their own, one of them orphaned twice over, most of which ignore
// TERM, and says when all run.
const family = `trap "" TERM
setsid sh -c 'trap "" TERM; sleep 601' &
(setsid sh -c '(trap "" TERM; sleep 602) & sleep 603' &)
unshare -U -r setsid sleep 606 &
sleep 0.3; echo ready; sleep 604`

// started starts a script and waits for its first line.
func started(t *testing.T, b *keepertest.Box, r *toolboxv1.Start) {
	t.Helper()
	_, err := b.Client.Start(t.Context(), r)
	require.NoError(t, err)
	s, err := b.Attach(t.Context(), &toolboxv1.Attach{ExecId: r.ExecId})
	require.NoError(t, err)
	defer s.Close()
	e, err := s.Recv()
	require.NoError(t, err)
	require.Equal(t, "ready\n", string(e.GetData().GetData()), e)
}

// sleepers are the sleeps that still run in the sandbox.
func sleepers(t *testing.T, b *keepertest.Box) int {
	t.Helper()
	return strings.Count(b.Sh(t, "ps -o args").Stdout, "\nsleep 60")
}

func TestCancelEndsTheWholeTree(t *testing.T) {
	b := keepertest.Start(t)
	other := &toolboxv1.Start{ExecId: keepertest.NewID(), Argv: []string{"sh", "-c", "echo ready; sleep 605"}}
	started(t, b, other)
	r := &toolboxv1.Start{ExecId: keepertest.NewID(), Argv: []string{"sh", "-c", family}}
	started(t, b, r)
	require.Equal(t, 6, sleepers(t, b))
	_, err := b.Signal(t.Context(), &toolboxv1.Signal{ExecId: r.ExecId, Tree: true, GraceMs: 200, Reason: "cancelled"})
	require.NoError(t, err)
	o := b.Follow(t, r.ExecId, 0, 0)
	require.Equal(t, "cancelled", o.Reason)
	require.Equal(t, int32(9), o.Signal)
	require.Equal(t, 1, sleepers(t, b), "the other exec only")
}

func TestTimeoutKeepsOutput(t *testing.T) {
	b := keepertest.Start(t)
	began := time.Now()
	o := b.Do(t, &toolboxv1.Start{Argv: []string{"sh", "-c", "echo so far; sleep 600"}, TimeoutMs: 300})
	require.Equal(t, "timed_out", o.Reason)
	require.Equal(t, "so far\n", o.Stdout)
	require.Equal(t, int32(15), o.Signal)
	require.Less(t, time.Since(began), 30*time.Second)
	require.GreaterOrEqual(t, o.WallTimeUs, uint64(300_000))
}

func TestSignalTheLeader(t *testing.T) {
	b := keepertest.Start(t)
	r := &toolboxv1.Start{ExecId: keepertest.NewID(), Argv: []string{"sh", "-c", `trap "echo got; exit 7" USR1; echo ready; while :; do sleep 0.05; done`}}
	started(t, b, r)
	_, err := b.Signal(t.Context(), &toolboxv1.Signal{ExecId: r.ExecId, Signal: 10})
	require.NoError(t, err)
	o := b.Follow(t, r.ExecId, 0, 0)
	require.Equal(t, "ready\ngot\n", o.Stdout)
	require.Equal(t, "exited", o.Reason)
	require.Equal(t, int32(7), o.ExitCode)
}

// A fork bomb fails by the sandbox's own limit, can be cancelled, and other commands work afterwards.
func TestForkBomb(t *testing.T) {
	b := keepertest.Start(t)
	r := &toolboxv1.Start{ExecId: keepertest.NewID(), Argv: []string{"sh", "-c", `echo ready; f() { f & f; }; f 2>/dev/null; while :; do sh -c "sleep 1" & done`}}
	started(t, b, r)
	_, err := b.Signal(t.Context(), &toolboxv1.Signal{ExecId: r.ExecId, Tree: true, GraceMs: 100, Reason: "cancelled"})
	require.NoError(t, err)
	require.Equal(t, "cancelled", b.Follow(t, r.ExecId, 0, 0).Reason)
	after := b.Sh(t, "echo ok")
	require.Equal(t, "ok\n", after.Stdout, "%v\n%s", after.End, b.Log)
}

func TestMemoryBomb(t *testing.T) {
	b := keepertest.Start(t)
	o := b.Sh(t, "dd if=/dev/zero of=/dev/null bs=900M count=1")
	require.Equal(t, "oom_killed", o.Reason, "%v", o.End)
}

func TestFullDisks(t *testing.T) {
	b := keepertest.Start(t)
	o := b.Sh(t, "dd if=/dev/zero of=/workspace/f bs=1M count=400")
	require.Equal(t, int32(1), o.ExitCode)
	require.Contains(t, o.Stderr, "No space left on device")
	o = b.Sh(t, "rm /workspace/f; dd if=/dev/zero of=/tmp/f bs=1M count=300")
	require.Contains(t, o.Stderr, "No space left on device")
	o = b.Sh(t, "rm /tmp/f; dd if=/dev/zero of=/var/tmp/f bs=1M count=100")
	require.Contains(t, o.Stderr, "No space left on device")
	require.Equal(t, "ok\n", b.Sh(t, "rm /var/tmp/f; echo ok").Stdout)
}

// A guest's set-uid file means nothing, inside or on the host.
func TestSetuid(t *testing.T) {
	b := keepertest.Start(t)
	o := b.Sh(t, "cp /bin/busybox /workspace/id && chmod 4755 /workspace/id && /workspace/id | head -1; id -u")
	require.Contains(t, o.Stdout, "1000\n")
	require.NotContains(t, o.Stdout, "uid=0")
}

func TestOpenFilesAndCPU(t *testing.T) {
	b := keepertest.Start(t, func(s *launch.Spec) { s.CPUMillis, s.OpenFiles = 300, 64 })
	require.Equal(t, "64\n", b.Sh(t, "ulimit -n; ulimit -n 65 2>/dev/null").Stdout)
	o := b.Sh(t, "timeout 1 sh -c 'while :; do :; done'")
	require.Less(t, o.Usage.CpuMs*1000, o.WallTimeUs*40/100)
}

// Also what a command left behind, which nobody follows.
func TestABusySandboxWeighsLess(t *testing.T) {
	b := keepertest.Start(t, func(s *launch.Spec) { s.CPUMillis = 100 })
	g, err := cgroup.Open(b.Spec.Cgroup)
	require.NoError(t, err)
	weight := func() float64 {
		n, err := g.Weight()
		require.NoError(t, err)
		return float64(n)
	}
	full := weight()
	b.Sh(t, "(sh -c 'while [ ! -e /workspace/stop ]; do :; done') >/dev/null 2>&1 &")
	require.Eventually(t, func() bool { return weight() < full/4 }, time.Minute, 50*time.Millisecond, "it works without a pause")
	b.Sh(t, "touch /workspace/stop")
	require.Eventually(t, func() bool { return weight() == full }, time.Minute, 50*time.Millisecond, "it rests")
}

// A child that outlives its command keeps running, also when it prints.
func TestBackgroundChildLivesOn(t *testing.T) {
	b := keepertest.Start(t)
	o := b.Sh(t, "(sleep 0.3; for i in 1 2 3; do seq 1 50000; done; echo alive >/workspace/alive) & echo hi")
	require.Equal(t, "hi\n", o.Stdout)
	require.Eventually(t, func() bool { return b.Sh(t, "cat /workspace/alive").Stdout == "alive\n" }, 10*time.Second, 50*time.Millisecond)
}
