package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// needsHost says why a test does not run with -short.
func needsHost(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: runs real sandboxes and ClickHouse")
	}
}

// counting prints n numbered lines to each of both streams, one every step.
func counting(sandbox string, n int, step time.Duration) *computev1.ExecCommandRequest {
	script := fmt.Sprintf(`
import sys, time
for i in range(%d):
    print("out", i, flush=True)
    print("err", i, file=sys.stderr, flush=True)
    time.sleep(%f)
`, n, step.Seconds())
	return &computev1.ExecCommandRequest{SandboxId: sandbox, Command: "python3", Args: []string{"-c", script}}
}

func counted(prefix string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintln(&b, prefix, i)
	}
	return b.String()
}

// requireCounted checks that both streams are whole, each byte once, and that the exec ran once.
func requireCounted(t *testing.T, s *stack.Stack, sandbox string, r stack.Result, n int) {
	t.Helper()
	require.Equal(t, counted("out", n), string(r.Stdout))
	require.Equal(t, counted("err", n), string(r.Stderr))
	require.Empty(t, r.Gaps)
	require.Zero(t, r.Completed.GetExitCode())
	require.Equal(t, "exited", r.Completed.GetReason())
	require.Equal(t, []string{"ExecStarted", "ExecCompleted"}, s.ExecEvents(t, sandbox, r.ID))
}

func TestUpGoesOnWhereAnEarlierOneEnded(t *testing.T) {
	needsHost(t)
	s := stack.Up(t)
	sandbox := s.Create(t)
	before := s.Sh(t, sandbox, "echo kept > /workspace/file; echo also > /tmp/file; echo done")
	created, receipt, row := s.Describe(t, sandbox), s.Receipt(t, before.ID), s.Usage(t, before.ID)

	for how, end := range map[string]func(string){"Ctrl-C": s.Interrupt, "kill -9": s.Kill} {
		const lines = 200
		running := s.Begin(t, 40, counting(sandbox, lines, 20*time.Millisecond))
		end("up")
		s.Restart()

		again := s.Describe(t, sandbox)
		require.Equal(t, computev1.SandboxStatus_SANDBOX_STATUS_READY, again.GetStatus(), how)
		require.True(t, created.GetCreatedAt().AsTime().Equal(again.GetCreatedAt().AsTime()), how)
		s.Finish(t, &running)
		requireCounted(t, s, sandbox, running, lines)
		require.Equal(t, "kept\nalso\n", string(s.Sh(t, sandbox, "cat /workspace/file /tmp/file").Stdout), how)
		file, err := s.API.ReadFile(t.Context(), &computev1.ReadFileRequest{SandboxId: sandbox, Path: "file"})
		require.NoError(t, err)
		require.Equal(t, "kept\n", string(file.GetData()), how)
		require.True(t, proto.Equal(receipt, s.Receipt(t, before.ID)), how)
		require.True(t, proto.Equal(row, s.Usage(t, before.ID)), how)
		require.Equal(t, running.Completed.GetUsageEventId(), s.Usage(t, running.ID).GetId(), how)
	}
}

func TestDownEndsEverything(t *testing.T) {
	needsHost(t)
	s := stack.Up(t)
	sandbox := s.Ready(t)
	running := s.Begin(t, 10, counting(sandbox, 100_000, 20*time.Millisecond))
	s.Interrupt("up")
	require.NotEmpty(t, processesOf(t, s.State), "the sandbox goes on without up")
	s.Down()
	require.Eventually(t, func() bool { return len(processesOf(t, s.State)) == 0 }, 30*time.Second, 50*time.Millisecond,
		"%v", processesOf(t, s.State))
	require.Empty(t, loopsOf(t, s.State))
	require.Eventually(t, func() bool { return len(emptyGroups(t)) == 0 }, 10*time.Second, 100*time.Millisecond, "%v", emptyGroups(t))
	s.Restart()
	require.Equal(t, computev1.SandboxStatus_SANDBOX_STATUS_DESTROYED, s.Describe(t, sandbox).GetStatus())
	s.Finish(t, &running)
	require.Equal(t, "sandbox_destroyed", running.Completed.GetReason())
}

func TestAnyServiceMayBeKilledWhileACommandRuns(t *testing.T) {
	needsHost(t)
	s := stack.Processes(t)
	sandbox := s.Ready(t)
	for _, service := range stack.Services {
		t.Run(service, func(t *testing.T) {
			const lines = 100
			running := s.Begin(t, 40, counting(sandbox, lines, 20*time.Millisecond))
			s.Kill(service)
			s.Respawn(service)
			s.Finish(t, &running)
			requireCounted(t, s, sandbox, running, lines)
			require.Equal(t, running.Completed.GetUsageEventId(), s.Usage(t, running.ID).GetId())
			require.Equal(t, "hi\n", string(s.Exec(t, sandbox, "echo", "hi").Stdout))
		})
	}
	require.Equal(t, []string{"SandboxRequested", "SandboxStarting", "SandboxReady"}, s.SandboxEvents(t, sandbox))
}

// processesOf finds the processes whose command line names the state directory, or that hold a file of it.
func processesOf(t *testing.T, state string) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	var found []string
	for _, e := range entries {
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil {
			continue
		}
		mounts, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "mountinfo"))
		if strings.Contains(string(line), state) || strings.Contains(string(mounts), state) {
			found = append(found, e.Name()+" "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

// loopsOf finds the loop devices that stand on a file of the state directory.
func loopsOf(t *testing.T, state string) []string {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	require.NoError(t, err)
	var found []string
	for _, f := range files {
		if backing, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(backing), state) {
			found = append(found, strings.TrimSpace(string(backing)))
		}
	}
	return found
}

// emptyGroups finds the groups that hold sandboxes' groups and have none.
func emptyGroups(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup/sandtrail", "/sys/fs/cgroup/*/sandtrail"} {
		groups, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, g := range groups {
			if below, err := filepath.Glob(filepath.Join(g, "*", "cgroup.procs")); err == nil && len(below) == 0 {
				found = append(found, g)
			}
		}
	}
	return found
}
