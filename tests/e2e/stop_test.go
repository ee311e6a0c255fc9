package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

func TestAStoppedSandboxOutlivesItsWorkerAndComesBackAsItWas(t *testing.T) {
	needsHost(t)
	s := stack.Up(t)
	sandbox := s.Ready(t, func(r *computev1.CreateSandboxRequest) { r.EnvVars = map[string]string{"GREETING": "hello"} })
	s.Sh(t, sandbox, "echo root > /var/tmp/mark; echo work > /workspace/mark; echo gone > /tmp/mark")
	host := string(s.Sh(t, sandbox, "cat /proc/sys/kernel/hostname").Stdout)
	running := s.Begin(t, 10, counting(sandbox, 100_000, 20*time.Millisecond))

	stopped, err := s.API.StopSandbox(t.Context(), &computev1.StopSandboxRequest{SandboxId: sandbox})
	require.NoError(t, err)
	s.Finish(t, &running)
	require.Equal(t, "sandbox_stopped", running.Completed.GetReason())
	require.NotZero(t, running.Completed.GetExitCode())
	stream, err := s.API.ExecCommand(t.Context(), &computev1.ExecCommandRequest{SandboxId: sandbox, Command: "true"})
	if err == nil {
		_, err = stream.Recv()
	}
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
	require.Contains(t, err.Error(), "start it")
	require.Empty(t, loopsOf(t, s.State))

	s.Kill("up")
	s.Restart()
	require.Equal(t, "stopped", s.Describe(t, sandbox).GetDetail().GetState())
	began := time.Now()
	_, err = s.API.StartSandbox(t.Context(), &computev1.StartSandboxRequest{SandboxId: sandbox})
	require.NoError(t, err)
	t.Logf("back after %s", time.Since(began))
	require.Equal(t, computev1.SandboxStatus_SANDBOX_STATUS_READY, s.Describe(t, sandbox).GetStatus())
	require.Equal(t, "root\nwork\nhello\n"+host, string(s.Sh(t, sandbox, "cat /var/tmp/mark /workspace/mark; echo $GREETING; cat /proc/sys/kernel/hostname").Stdout))
	require.Equal(t, "0\n", string(s.Sh(t, sandbox, "ls /tmp | wc -l").Stdout), "/tmp is memory")
	again := s.Describe(t, sandbox)
	require.Less(t, again.GetCurrentUptime().AsDuration(), stopped.GetTotalUptime().AsDuration()+time.Since(began)+time.Second, "the time it was stopped does not count")
	require.GreaterOrEqual(t, again.GetCurrentUptime().AsDuration(), stopped.GetTotalUptime().AsDuration())
	require.Equal(t, []string{
		"SandboxRequested", "SandboxStarting", "SandboxReady", "SandboxStopping", "SandboxStopped", "SandboxStarting", "SandboxReady",
	}, s.SandboxEvents(t, sandbox))

	_, err = s.API.StopSandbox(t.Context(), &computev1.StopSandboxRequest{SandboxId: sandbox})
	require.NoError(t, err)
	s.Destroy(t, sandbox)
	kept, err := os.ReadDir(filepath.Join(s.State, "sandboxes", ".kept"))
	require.NoError(t, err)
	require.Empty(t, kept, "nothing of it is kept but its workspace")
}
