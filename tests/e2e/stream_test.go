package e2e

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// long is how long the program runs that writes now and then: `go test ./tests/e2e -run Streams -long 90s`.
var long = flag.Duration("long", 3*time.Second, "how long a program writes now and then")

func shell(sandbox, script string) *computev1.ExecCommandRequest {
	return &computev1.ExecCommandRequest{SandboxId: sandbox, Command: "sh", Args: []string{"-c", script}}
}

// The streams of real programs through everything, from a pipe in gVisor to a client.
func TestStreams(t *testing.T) {
	needsHost(t)
	s := stack.Up(t)
	sandbox := s.Ready(t)

	t.Run("a program without end passes its limit and goes on", func(t *testing.T) {
		const limit = 1 << 20
		req := shell(sandbox, "yes | head -c 400000000; echo done >&2")
		req.OutputLimitBytes = limit
		r := s.Run(t, req)
		require.Zero(t, r.Completed.GetExitCode())
		require.Equal(t, "exited", r.Completed.GetReason())
		require.Equal(t, "done\n", string(r.Stderr))
		require.Len(t, r.Stdout, 2*limit, "its first MiB and its last")
		require.True(t, bytes.Equal(bytes.Repeat([]byte("y\n"), limit), r.Stdout))
		out := r.Completed.GetStdout()
		require.EqualValues(t, 400_000_000, out.GetBytes())
		require.EqualValues(t, 400_000_000-2*limit, out.GetDroppedBytes())
		require.Len(t, out.GetGaps(), 1)
		require.EqualValues(t, limit, out.GetGaps()[0].GetFrom())
		require.EqualValues(t, 400_000_000-limit, out.GetGaps()[0].GetTo())
		require.Len(t, r.Gaps, 1, "the stream tells it too")
		sum := sha256.Sum256(r.Stdout)
		require.Equal(t, sum[:], out.GetSha256())
		require.Contains(t, r.Completed.GetMessage(), "of stdout are not recorded, it passed its limit of 1048576")
		require.Equal(t, out.GetGaps()[0].GetTo(), s.Receipt(t, r.ID).GetCompleted().GetStdout().GetGaps()[0].GetTo())
	})

	t.Run("a program that is to stop at its limit is stopped", func(t *testing.T) {
		req := shell(sandbox, "trap '' TERM; yes")
		req.OutputLimitBytes, req.StopAtOutputLimit = 100_000, true
		req.Timeout = durationpb.New(time.Minute)
		r := s.Run(t, req)
		require.Equal(t, "output_limit", r.Completed.GetReason())
		require.True(t, r.Completed.GetCancelled())
		require.NotZero(t, r.Completed.GetExitCode())
		require.Len(t, r.Stdout, 200_000)
	})

	t.Run("a slow reader gets everything", func(t *testing.T) {
		stream, err := s.API.ExecCommand(t.Context(), shell(sandbox, "seq 1 2000000"))
		require.NoError(t, err)
		var r stack.Result
		for r.Completed == nil {
			e, err := stream.Recv()
			require.NoError(t, err)
			require.NoError(t, r.Take(e))
			s.Describe(t, sandbox) // which takes longer than the program needs for a chunk
		}
		want := make([]byte, 0, 15<<20)
		for i := range 2_000_000 {
			want = fmt.Appendln(want, i+1)
		}
		require.True(t, bytes.Equal(want, r.Stdout), "%d bytes of %d, or others", len(r.Stdout), len(want))
		require.Empty(t, r.Gaps)
	})

	t.Run("a program that runs long streams to its end", func(t *testing.T) {
		req := counting(sandbox, int(*long/(100*time.Millisecond)), 100*time.Millisecond)
		r := s.Run(t, req)
		requireCounted(t, s, sandbox, r, int(*long/(100*time.Millisecond)))
	})

	t.Run("characters in two pieces stay whole", func(t *testing.T) {
		script := `
import os
for b in "grüße, 世界\n".encode() * 2000: os.write(1, bytes([b]))
`
		r := s.Exec(t, sandbox, "python3", "-c", script)
		require.Equal(t, strings.Repeat("grüße, 世界\n", 2000), string(r.Stdout))
	})
}
