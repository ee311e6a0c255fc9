package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

const mib = 1 << 20

// near is within a tenth.
func near(t *testing.T, want, got uint64, what string) {
	t.Helper()
	require.InEpsilon(t, float64(want), float64(got), 0.1, "%s: %d and not %d", what, got, want)
}

func TestUsageOfAKnownLoad(t *testing.T) {
	needsHost(t)
	s := stack.Up(t)
	// Two cores, so that the sandbox's own work is not held back by the limit of the load.
	sandbox := s.Ready(t, func(r *computev1.CreateSandboxRequest) { r.Limits = &computev1.ResourceLimits{CpuMillis: 2000} })
	var execs []stack.Result
	python := func(t *testing.T, script string) *computev1.ExecCompleted {
		t.Helper()
		r := s.Exec(t, sandbox, "python3", "-c", script)
		require.Zero(t, r.Completed.GetExitCode(), "%s", r.Stderr)
		execs = append(execs, r)
		return r.Completed
	}
	// What the interpreter costs by itself is not the load.
	idle := python(t, "pass").GetUsage()

	t.Run("a second of CPU, by what the host's kernel says of its processes", func(t *testing.T) {
		before := hostCPU(t, sandbox)
		// Its own clock would count the time that it waited for a busy host, too.
		used := python(t, "for _ in range(60_000_000): pass").GetUsage()
		spent := hostCPU(t, sandbox) - before
		require.Greater(t, spent, 300*time.Millisecond, "the load is too small to be measured")
		near(t, uint64(spent.Milliseconds()), used.GetCpuMs(), "cpu_ms")
	})
	t.Run("two hundred mebibytes of memory", func(t *testing.T) {
		used := python(t, "import time; a = bytearray(200 << 20); a[::4096] = b'x' * len(a[::4096]); time.sleep(0.3)").GetUsage()
		near(t, 200*mib, used.GetMemoryPeakBytes()-idle.GetMemoryPeakBytes(), "memory_peak_bytes")
	})
	t.Run("a hundred mebibytes written", func(t *testing.T) {
		used := python(t, `
import os
with open("/workspace/file", "wb") as f:
    for _ in range(100): f.write(os.urandom(1 << 20))
    os.fsync(f.fileno())`).GetUsage()
		near(t, 100*mib, used.GetDiskWriteBytes(), "disk_write_bytes")
	})
	t.Run("fifty mebibytes read", func(t *testing.T) {
		used := python(t, `
with open("/workspace/file", "rb") as f:
    for _ in range(50): f.read(1 << 20)`).GetUsage()
		near(t, 50*mib, used.GetDiskReadBytes(), "disk_read_bytes")
	})
	t.Run("is in the row, which is there within two seconds", func(t *testing.T) {
		begin := time.Now()
		r := s.Exec(t, sandbox, "python3", "-c", "print(1)")
		execs = append(execs, r)
		row := s.Usage(t, r.ID)
		require.Less(t, time.Since(begin)-r.Completed.GetWallTime().AsDuration(), 2*time.Second)
		require.Equal(t, r.Completed.GetUsageEventId(), row.GetId())
		for _, x := range execs {
			row, want := s.Usage(t, x.ID), x.Completed.GetUsage()
			require.Equal(t, x.Completed.GetUsageEventId(), row.GetId())
			require.Equal(t, want.GetCpuMs(), row.GetUsage().GetCpuMs())
			require.Equal(t, want.GetMemoryPeakBytes(), row.GetUsage().GetMemoryPeakBytes())
			require.Equal(t, want.GetDiskWriteBytes(), row.GetUsage().GetDiskWriteBytes())
			require.Equal(t, want.GetDiskReadBytes(), row.GetUsage().GetDiskReadBytes())
			require.Equal(t, strconv.FormatUint(want.GetCpuMs(), 10),
				s.Query(t, fmt.Sprintf("SELECT cpu_ms FROM agents.usage_events WHERE id = '%s'", row.GetId())))
		}
	})
	t.Run("of the sandbox is at least that of its commands", func(t *testing.T) {
		total, sum := s.Destroy(t, sandbox).GetTotalUsage(), &commonv1.UsageMetrics{}
		for _, x := range execs {
			u := x.Completed.GetUsage()
			sum.CpuMs += u.GetCpuMs()
			sum.DiskWriteBytes += u.GetDiskWriteBytes()
			sum.DiskReadBytes += u.GetDiskReadBytes()
			sum.MemoryPeakBytes = max(sum.MemoryPeakBytes, u.GetMemoryPeakBytes())
		}
		require.GreaterOrEqual(t, total.GetCpuMs(), sum.GetCpuMs())
		require.GreaterOrEqual(t, total.GetDiskWriteBytes(), sum.GetDiskWriteBytes())
		require.GreaterOrEqual(t, total.GetDiskReadBytes(), sum.GetDiskReadBytes())
		require.GreaterOrEqual(t, total.GetMemoryPeakBytes(), sum.GetMemoryPeakBytes())
	})
}

// hostCPU is the time that the processes of a sandbox have used, those that have ended included.
func hostCPU(t *testing.T, sandbox string) time.Duration {
	t.Helper()
	mark := []byte("st" + strings.ReplaceAll(sandbox, "-", ""))
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	var ticks, found int
	for _, e := range entries {
		group, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cgroup"))
		if err != nil || !bytes.Contains(group, mark) {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		found++
		// Behind the name, which may hold anything: utime, stime, cutime and cstime are the 12th to 15th.
		for _, field := range bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])[11:15] {
			n, err := strconv.Atoi(string(field))
			require.NoError(t, err)
			ticks += n
		}
	}
	require.NotZero(t, found, "no process of the sandbox")
	return time.Duration(ticks) * 10 * time.Millisecond
}
