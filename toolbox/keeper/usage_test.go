package keeper_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/cgroup"
	"github.com/sandtrail/sandtrail/toolbox/keeper/keepertest"
)

func TestUsage(t *testing.T) {
	b := keepertest.Start(t)
	// The host may be busy and give less than a second; how much it gave is also in the process table.
	before := hostTime(t, b)
	burn := b.Sh(t, "timeout 2 sh -c 'while :; do :; done'")
	want := float64((hostTime(t, b) - before).Milliseconds())
	t.Logf("cpu %d ms, by the process table %v ms, wall %d ms", burn.Usage.CpuMs, want, burn.WallTimeUs/1000)
	require.Equal(t, "cgroup", burn.UsageMethod)
	require.InDelta(t, want, burn.Usage.CpuMs, max(want/10, 40))

	disk := b.Sh(t, "dd if=/dev/zero of=/workspace/f bs=1M count=100 2>/dev/null; dd if=/workspace/f of=/dev/null bs=1M 2>/dev/null")
	t.Logf("disk %v", disk.Usage)
	require.InEpsilon(t, 100<<20, disk.Usage.DiskWriteBytes, 0.1)
	require.InEpsilon(t, 100<<20, disk.Usage.DiskReadBytes, 0.1)

	pipes := b.Sh(t, "dd if=/dev/zero bs=64k count=300")
	require.Less(t, pipes.Usage.DiskWriteBytes, uint64(1<<20), "output is not disk")

	memory := b.Sh(t, "dd if=/dev/zero bs=60M count=1 2>/dev/null | (sleep 0.8; wc -c)")
	t.Logf("memory %v", memory.Usage)
	require.Greater(t, memory.Usage.MemoryPeakBytes, uint64(50<<20))
	require.Less(t, memory.Usage.MemoryPeakBytes, uint64(110<<20), "the file cache that the exec before left is not this one's")
	require.Greater(t, memory.Usage.MemoryAvgBytes, uint64(30<<20))
	require.Less(t, memory.Usage.MemoryAvgBytes, memory.Usage.MemoryPeakBytes)
}

// hostTime is the CPU time of the sandbox's processes, living or waited for, as the host's process table has it.
func hostTime(t *testing.T, b *keepertest.Box) time.Duration {
	t.Helper()
	g, err := cgroup.Open(b.Spec.Cgroup)
	require.NoError(t, err)
	pids, err := os.ReadFile(g.Procs()[0])
	require.NoError(t, err)
	return tableTime(t, strings.Fields(string(pids)))
}

func tableTime(t *testing.T, pids []string) time.Duration {
	t.Helper()
	var ticks uint64
	for _, pid := range pids {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		for _, field := range strings.Fields(rest)[11:15] {
			n, err := strconv.ParseUint(field, 10, 64)
			require.NoError(t, err)
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// Overlapping execs are never given more than the sandbox used.
func TestSharedUsage(t *testing.T) {
	b := keepertest.Start(t)
	before, err := b.Usage(t.Context(), &toolboxv1.Usage{})
	require.NoError(t, err)
	var ids []string
	for range 3 {
		id := keepertest.NewID()
		_, err := b.Client.Start(t.Context(), &toolboxv1.Start{ExecId: id, Argv: []string{"timeout", "0.5", "sh", "-c", "while :; do :; done"}})
		require.NoError(t, err)
		ids = append(ids, id)
	}
	var sum uint64
	for _, id := range ids {
		o := b.Follow(t, id, 0, 0)
		require.Equal(t, "cgroup_shared", o.UsageMethod)
		require.NotZero(t, o.Usage.CpuMs)
		sum += o.Usage.CpuMs
	}
	after, err := b.Usage(t.Context(), &toolboxv1.Usage{})
	require.NoError(t, err)
	require.LessOrEqual(t, sum, after.Usage.CpuMs-before.Usage.CpuMs+1)
}

// A command that waits is not billed for its neighbour's work, whether that is one long command, one that makes many short
// processes, or many short commands.
func TestSharedUsageOfBusyAndIdle(t *testing.T) {
	b := keepertest.Start(t)
	// What ran alone before must not count again.
	warm := keepertest.NewID()
	_, err := b.Client.Start(t.Context(), &toolboxv1.Start{ExecId: warm, Argv: []string{"sh", "-c", "timeout 0.5 sh -c 'while :; do :; done'; echo; sleep 600"}})
	require.NoError(t, err)
	stream, err := b.Attach(t.Context(), &toolboxv1.Attach{ExecId: warm})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	stream.Close()
	for name, script := range map[string]string{
		"long": "timeout 2 sh -c 'while :; do :; done'",
		"many": "i=0; while [ $i -lt 60 ]; do /bin/seq 1 20000 >/dev/null; i=$((i+1)); done",
	} {
		idle := keepertest.NewID()
		_, err := b.Client.Start(t.Context(), &toolboxv1.Start{ExecId: idle, Argv: []string{"sleep", "600"}})
		require.NoError(t, err)
		busy := b.Sh(t, script)
		_, err = b.Signal(t.Context(), &toolboxv1.Signal{ExecId: idle, Signal: 9})
		require.NoError(t, err)
		share(t, name, busy.Usage.CpuMs, b.Follow(t, idle, 0, 0).Usage.CpuMs)
	}
	idle := keepertest.NewID()
	_, err = b.Client.Start(t.Context(), &toolboxv1.Start{ExecId: idle, Argv: []string{"sleep", "600"}})
	require.NoError(t, err)
	var sum uint64
	for range 20 {
		sum += b.Sh(t, "/bin/seq 1 100000 >/dev/null").Usage.CpuMs
	}
	_, err = b.Signal(t.Context(), &toolboxv1.Signal{ExecId: idle, Signal: 9})
	require.NoError(t, err)
	share(t, "short commands", sum, b.Follow(t, idle, 0, 0).Usage.CpuMs)
}

func share(t *testing.T, name string, busy, idle uint64) {
	t.Helper()
	t.Logf("%s: busy %d ms, idle %d ms", name, busy, idle)
	require.Greater(t, busy, uint64(200))
	require.Greater(t, float64(busy)/float64(busy+idle), 0.9)
}

func TestSizes(t *testing.T) {
	info, err := os.Stat(keepertest.Toolbox(t))
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(8<<20))
	b := keepertest.Start(t)
	b.Sh(t, "seq 1 200000")
	kib := rss(t, b)
	usage, err := b.Usage(t.Context(), &toolboxv1.Usage{})
	require.NoError(t, err)
	t.Logf("binary %d bytes, keeper %d KiB, sandbox %d KiB", info.Size(), kib, usage.MemoryBytes>>10)
	require.Less(t, kib, 12<<10)
}

// rss is the keeper's memory in KiB.
func rss(t *testing.T, b *keepertest.Box) int { t.Helper(); return memory(t, b, "VmRSS:") }

func memory(t *testing.T, b *keepertest.Box, what string) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.PID()))
	require.NoError(t, err)
	var kib int
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, what); ok {
			_, err := fmt.Sscan(rest, &kib)
			require.NoError(t, err)
		}
	}
	require.NotZero(t, kib)
	return kib
}

// BenchmarkExec is one command from the call to its end.
func BenchmarkExec(b *testing.B) {
	box := keepertest.Start(b)
	for _, argv := range [][]string{{"true"}, {"sh", "-c", "echo hi"}} {
		b.Run(argv[0], func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				require.Equal(b, "exited", box.Run(b, argv...).Reason)
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(took[len(took)*95/100].Microseconds()), "p95-us")
		})
	}
}

// BenchmarkHostFork is what the host needs for the same.
func BenchmarkHostFork(b *testing.B) {
	for b.Loop() {
		require.NoError(b, exec.Command("/bin/true").Run())
	}
}

// Many commands, more than are remembered in memory, leave the keeper as it was.
func TestManyExecsAreFlat(t *testing.T) {
	b := keepertest.Start(t)
	descriptors := func() int {
		list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", b.PID()))
		require.NoError(t, err)
		return len(list)
	}
	first := keepertest.NewID()
	b.Do(t, &toolboxv1.Start{ExecId: first, Argv: []string{"echo", "first"}})
	before := descriptors()
	began := time.Now()
	const lanes, each = 8, 50
	var wg sync.WaitGroup
	for range lanes {
		wg.Go(func() {
			for range each {
				b.Sh(t, "echo hi; echo ho >&2")
			}
		})
	}
	wg.Wait()
	t.Logf("%.0f commands a second", lanes*each/time.Since(began).Seconds())
	require.Eventually(t, func() bool { return descriptors() <= before+4 }, 10*time.Second, 20*time.Millisecond)
	require.Eventually(t, func() bool {
		list, err := b.List(t.Context(), &toolboxv1.List{})
		require.NoError(t, err)
		return len(list.Execs) == 128
	}, 10*time.Second, 20*time.Millisecond)
	again, err := b.Client.Start(t.Context(), &toolboxv1.Start{ExecId: first, Argv: []string{"echo", "first"}})
	require.NoError(t, err)
	require.False(t, again.Started)
	require.Equal(t, "exited", again.State.End.Reason)
	require.EqualValues(t, 6, b.Follow(t, first, 0, 0).Skipped)
	// It gives memory back some time after the last command. What of its own program lies in memory is for the kernel to say.
	t.Logf("keeper %d KiB busy, of them %d its own", rss(t, b), memory(t, b, "RssAnon:"))
	require.Eventually(t, func() bool { return memory(t, b, "RssAnon:") < 5632 }, time.Minute, 50*time.Millisecond)
	t.Logf("keeper %d KiB idle, of them %d its own", rss(t, b), memory(t, b, "RssAnon:"))
}
