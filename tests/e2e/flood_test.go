package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

const floodBlock = 64 << 10

// flooding writes n blocks as fast as it can, each with its number in front.
func flooding(sandbox string, n int) *computev1.ExecCommandRequest {
	script := fmt.Sprintf(`
import os
for i in range(%d):
    b = i.to_bytes(8, "big") + bytes([i %% 251]) * (%d - 8)
    while b: b = b[os.write(1, b):]
`, n, floodBlock)
	return &computev1.ExecCommandRequest{SandboxId: sandbox, Command: "python3", Args: []string{"-c", script}}
}

func flooded(n int) []byte {
	b := make([]byte, 0, n*floodBlock)
	for i := range n {
		b = binary.BigEndian.AppendUint64(b, uint64(i))
		b = append(b, bytes.Repeat([]byte{byte(i % 251)}, floodBlock-8)...)
	}
	return b
}

func requireFlooded(t *testing.T, s *stack.Stack, sandbox string, r stack.Result, n int) {
	t.Helper()
	want := flooded(n)
	sum := sha256.Sum256(want)
	require.Empty(t, r.Gaps)
	require.True(t, bytes.Equal(want, r.Stdout), "%d bytes of %d, or others", len(r.Stdout), len(want))
	require.Equal(t, sum[:], r.Completed.GetStdout().GetSha256())
	require.EqualValues(t, len(want), r.Completed.GetStdout().GetBytes())
	require.Zero(t, r.Completed.GetStdout().GetDroppedBytes())
	require.Equal(t, []string{"ExecStarted", "ExecCompleted"}, s.ExecEvents(t, sandbox, r.ID))
}

// A process that carries output dies in the middle of a flood. What a program writes while the exec service is away is kept up to
// its cap, so that flood stays below; the gateway only carries on what is stored.
func TestAProcessMayBeKilledWhileOutputFloods(t *testing.T) {
	needsHost(t)
	s := stack.Processes(t)
	sandbox := s.Ready(t)
	for service, blocks := range map[string]int{"exec": 240, "gateway": 2048} {
		t.Run(service, func(t *testing.T) {
			running := s.Begin(t, floodBlock, flooding(sandbox, blocks))
			s.Kill(service)
			s.Respawn(service)
			s.Finish(t, &running)
			requireFlooded(t, s, sandbox, running, blocks)
		})
	}
}

// The same where the log's server dies too.
func TestUpMayBeKilledWhileOutputFloods(t *testing.T) {
	needsHost(t)
	s := stack.Up(t)
	sandbox := s.Ready(t)
	const blocks = 240
	running := s.Begin(t, floodBlock, flooding(sandbox, blocks))
	s.Kill("up")
	s.Restart()
	s.Finish(t, &running)
	requireFlooded(t, s, sandbox, running, blocks)
}
