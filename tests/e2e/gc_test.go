package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandtrail/sandtrail/libs/natsserver"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

func TestWorkspaceIsKeptUntilItsTimeAndRemovedThen(t *testing.T) {
	needsHost(t)
	s := stack.Processes(t, stack.Extra{"lifecycle": {"--keep-workspace", "5s"}})
	sandbox := s.Ready(t)
	live := s.Ready(t)
	image := filepath.Join(s.State, "workspaces", sandbox+".img")
	s.Kill("gc")
	begin := time.Now()
	end := s.Destroy(t, sandbox)
	due := end.GetWorkspaceDeleteAfter().AsTime()
	require.WithinDuration(t, begin.Add(5*time.Second), due, 4*time.Second)

	dry := func() string {
		cmd := exec.CommandContext(t.Context(), filepath.Join(stack.Bin(t), "sandtrail-gc"), "--once", "--dry-run", "--nats", s.NATS, "--log-level", "warn")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		require.NoError(t, err)
		return string(out)
	}
	before := dry()
	if time.Now().Before(due) {
		require.NotContains(t, before, sandbox, "it is not due yet")
		require.FileExists(t, image)
	}
	var shown string
	require.Eventually(t, func() bool { shown = dry(); return strings.Contains(shown, sandbox) }, 20*time.Second, 200*time.Millisecond)
	require.Contains(t, shown, "workspace")
	require.Contains(t, shown, "it was to be kept until")
	require.NotContains(t, shown, live)
	require.FileExists(t, image, "a dry run removes nothing")

	s.Respawn("gc")
	require.Eventually(t, func() bool { _, err := os.Stat(image); return os.IsNotExist(err) }, 20*time.Second, 50*time.Millisecond)
	require.Eventually(t, func() bool {
		for _, e := range s.Events(t, sandbox) {
			if short := e.GetType(); strings.HasSuffix(short, ".WorkspaceDeleted") {
				require.False(t, e.GetTime().AsTime().Before(due))
				return true
			}
		}
		return false
	}, 10*time.Second, 50*time.Millisecond)
	require.FileExists(t, filepath.Join(s.State, "workspaces", live+".img"))
	require.Equal(t, "ok\n", string(s.Exec(t, live, "echo", "ok").Stdout))
}

func TestMaxRuntimeEndsASandboxAndWhatRunsInIt(t *testing.T) {
	needsHost(t)
	s := stack.Up(t)
	const runtime = 4 * time.Second
	begin := time.Now()
	sandbox := s.Ready(t, func(r *computev1.CreateSandboxRequest) {
		r.Limits = &computev1.ResourceLimits{MaxRuntime: durationpb.New(runtime)}
	})
	r := s.Begin(t, 1, &computev1.ExecCommandRequest{SandboxId: sandbox, Command: "sh", Args: []string{"-c", "echo begun; sleep 600"}})
	s.Finish(t, &r)
	require.Equal(t, "sandbox_destroyed", r.Completed.GetReason())
	require.GreaterOrEqual(t, time.Since(begin), runtime)
	require.Eventually(t, func() bool {
		return s.Describe(t, sandbox).GetStatus() == computev1.SandboxStatus_SANDBOX_STATUS_DESTROYED
	}, 20*time.Second, 50*time.Millisecond)
	require.Less(t, time.Since(begin), runtime+15*time.Second)
	for _, e := range s.Events(t, sandbox) {
		if strings.HasSuffix(e.GetType(), ".SandboxDestroying") {
			var body struct{ Reason string }
			require.NoError(t, json.Unmarshal([]byte(e.GetBodyJson()), &body))
			require.Equal(t, "expired", body.Reason)
		}
	}
}

func TestSandboxThatTheLogDoesNotKnowIsEnded(t *testing.T) {
	needsHost(t)
	s := stack.Processes(t)
	sandbox := s.Ready(t)
	keeper := keeperOf(t, s, sandbox)
	other, err := natsserver.Start(natsserver.Options{Dir: t.TempDir(), Port: -1})
	require.NoError(t, err)
	t.Cleanup(other.Shutdown)

	s.Kill("lifecycle")
	s.Respawn("lifecycle", "--nats", other.URL(), "--orphan-grace", "1s")
	require.Eventually(t, func() bool { return syscall.Kill(keeper, 0) == syscall.ESRCH }, 30*time.Second, 50*time.Millisecond)
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(s.State, "sandboxes", sandbox))
		return os.IsNotExist(err)
	}, 10*time.Second, 50*time.Millisecond)
	require.FileExists(t, filepath.Join(s.State, "workspaces", sandbox+".img"), "its data is kept longer")

	s.Kill("lifecycle")
	s.Respawn("lifecycle", "--nats", s.NATS)
	require.Eventually(t, func() bool {
		return s.Describe(t, sandbox).GetStatus() == computev1.SandboxStatus_SANDBOX_STATUS_FAILED
	}, 30*time.Second, 50*time.Millisecond, "the log that knows it says that it is lost")
}

// A sandbox that nobody uses any more ends by itself: not while a command runs in it, however quiet that is, and not sooner for a restart.
func TestAnIdleSandboxEndsByItself(t *testing.T) {
	needsHost(t)
	s := stack.Up(t)
	const timeout = 10 * time.Second
	limited := func(r *computev1.CreateSandboxRequest) {
		r.Limits = &computev1.ResourceLimits{IdleTimeout: durationpb.New(timeout)}
	}
	idle, busy := s.Ready(t, limited), s.Ready(t, limited)
	s.Kill("up")
	s.Restart()
	run := s.Begin(t, 1, &computev1.ExecCommandRequest{SandboxId: busy, Command: "sh", Args: []string{"-c", "echo begun; sleep 30; echo ended"}})
	_, err := s.API.WriteFile(t.Context(), &computev1.WriteFileRequest{SandboxId: idle, Path: "note", Data: []byte("x")})
	require.NoError(t, err)
	used := time.Now()
	gone := func(sandbox string) {
		t.Helper()
		require.Eventually(t, func() bool {
			return s.Describe(t, sandbox).GetStatus() == computev1.SandboxStatus_SANDBOX_STATUS_DESTROYED
		}, 90*time.Second, 50*time.Millisecond)
		require.GreaterOrEqual(t, time.Since(used), timeout)
		d := s.Describe(t, sandbox).GetDetail()
		require.Equal(t, "idle", d.GetReasonCode())
		require.Equal(t, timeout, d.GetLimits().GetIdleTimeout().AsDuration())
	}
	gone(idle)
	require.Equal(t, computev1.SandboxStatus_SANDBOX_STATUS_READY, s.Describe(t, busy).GetStatus(), "a command runs in it")
	s.Finish(t, &run)
	require.Equal(t, "begun\nended\n", string(run.Stdout))
	require.Equal(t, "exited", run.Completed.GetReason())
	used = time.Now()
	gone(busy)
}
