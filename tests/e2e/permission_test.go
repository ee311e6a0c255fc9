package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// What a role may not do is libs/permission's test; here nothing that services do is refused.
func TestServicesWithTheirOwnKeysDoAllTheirWorkAndAreRefusedNothing(t *testing.T) {
	needsHost(t)
	s, refused := stack.Guarded(t, stack.Extra{"lifecycle": {"--keep-workspace", "1s"}})
	t.Cleanup(func() { require.Empty(t, refused()) })

	sandbox := s.Ready(t)
	run := s.Sh(t, sandbox, "echo out; echo err >&2; exit 3")
	require.Equal(t, int32(3), run.Completed.GetExitCode())
	require.Equal(t, "out\n", string(run.Stdout))
	keyed := metadata.AppendToOutgoingContext(t.Context(), "idempotency-key", "one")
	_, err := s.API.WriteFile(keyed, &computev1.WriteFileRequest{SandboxId: sandbox, Path: "note", Data: []byte("kept")})
	require.NoError(t, err)
	read, err := s.API.ReadFile(t.Context(), &computev1.ReadFileRequest{SandboxId: sandbox, Path: "note"})
	require.NoError(t, err)
	require.Equal(t, "kept", string(read.GetData()))

	// A command that is left and found again, over a restart of the service that runs it.
	left := s.Begin(t, 1, &computev1.ExecCommandRequest{SandboxId: sandbox, Command: "sh", Args: []string{"-c", "echo a; read x < /dev/null; sleep 2; echo b"}})
	s.Interrupt("exec")
	s.Respawn("exec")
	s.Finish(t, &left)
	require.Equal(t, "a\nb\n", string(left.Stdout))
	require.Equal(t, left.ID, s.Usage(t, left.ID).GetExecId())

	// One that gc ends, with its workspace.
	short := s.Ready(t, func(r *computev1.CreateSandboxRequest) {
		r.Limits = &computev1.ResourceLimits{MaxRuntime: durationpb.New(3 * time.Second)}
	})
	require.Eventually(t, func() bool {
		for _, e := range s.Events(t, short) {
			if strings.HasSuffix(e.GetType(), ".WorkspaceDeleted") {
				return true
			}
		}
		return false
	}, 3*time.Minute, 100*time.Millisecond, "gc did not remove it")
	s.Destroy(t, sandbox)
}
