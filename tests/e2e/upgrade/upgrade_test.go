package upgrade

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// lines is how much an exec prints while a service is replaced under it: two seconds' worth.
const lines = 100

func begin(t *testing.T, s *stack.Stack, sandbox string) stack.Result {
	t.Helper()
	script := fmt.Sprintf("import time\nfor i in range(%d):\n    print('line', i, flush=True)\n    time.sleep(0.02)\n", lines)
	return s.Begin(t, 20, &computev1.ExecCommandRequest{SandboxId: sandbox, Command: "python3", Args: []string{"-c", script}})
}

// finish takes the rest of what begin started and checks that it is whole, ran once and is billed once.
func finish(t *testing.T, s *stack.Stack, sandbox string, r stack.Result) {
	t.Helper()
	s.Finish(t, &r)
	var want strings.Builder
	for i := range lines {
		fmt.Fprintln(&want, "line", i)
	}
	require.Equal(t, want.String(), string(r.Stdout))
	require.Empty(t, r.Gaps)
	require.Equal(t, "exited", r.Completed.GetReason())
	require.Equal(t, []string{"ExecStarted", "ExecCompleted"}, s.ExecEvents(t, sandbox, r.ID))
	require.Equal(t, r.Completed.GetUsageEventId(), s.Usage(t, r.ID).GetId())
}

// works uses a sandbox in every way: commands, files, an end that a signal makes.
func works(t *testing.T, s *stack.Stack, sandbox string) stack.Result {
	t.Helper()
	r := s.Sh(t, sandbox, "echo out; echo err >&2; exit 3")
	require.Equal(t, "out\n", string(r.Stdout))
	require.Equal(t, "err\n", string(r.Stderr))
	require.EqualValues(t, 3, r.Completed.GetExitCode())
	require.Equal(t, r.Completed.GetUsageEventId(), s.Usage(t, r.ID).GetId())
	_, err := s.API.WriteFile(t.Context(), &computev1.WriteFileRequest{SandboxId: sandbox, Path: "note", Data: []byte("kept")})
	require.NoError(t, err)
	require.Equal(t, "kept", string(s.Sh(t, sandbox, "cat note").Stdout))
	file, err := s.API.ReadFile(t.Context(), &computev1.ReadFileRequest{SandboxId: sandbox, Path: "note"})
	require.NoError(t, err)
	require.Equal(t, "kept", string(file.GetData()))

	running := begin(t, s, sandbox)
	_, err = s.API.CancelExec(t.Context(), &computev1.CancelExecRequest{ExecId: running.ID})
	require.NoError(t, err)
	s.Finish(t, &running)
	require.Equal(t, "cancelled", running.Completed.GetReason())
	return r
}

// whole is the life of a sandbox from its first event to its last.
func whole(t *testing.T, s *stack.Stack) {
	t.Helper()
	sandbox := s.Ready(t)
	r := works(t, s, sandbox)
	s.Destroy(t, sandbox)
	require.Equal(t, []string{"SandboxRequested", "SandboxStarting", "SandboxReady", "SandboxDestroying", "SandboxDestroyed"}, s.SandboxEvents(t, sandbox))
	require.Eventually(t, func() bool {
		return s.Describe(t, sandbox).GetStatus() == computev1.SandboxStatus_SANDBOX_STATUS_DESTROYED
	}, time.Minute, 50*time.Millisecond)
	require.EqualValues(t, 3, s.Receipt(t, r.ID).GetCompleted().GetExitCode(), "a receipt outlives its sandbox")
}

// once creates with a key that was used before, and expects the sandbox that was made then.
func once(t *testing.T, s *stack.Stack, want string) string {
	t.Helper()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "idempotency-key", "the-same")
	res, err := s.API.CreateSandbox(ctx, &computev1.CreateSandboxRequest{TenantId: "acme", SessionId: "session-1", Image: stack.Image})
	require.NoError(t, err)
	if want != "" {
		require.Equal(t, want, res.GetSandboxId())
	}
	return res.GetSandboxId()
}

func TestServicesOfBothVersionsWorkTogether(t *testing.T) {
	needsHost(t)
	previous, present := versions(t)
	s := stack.ProcessesOf(t, previous)
	kept := []string{once(t, s, "")}
	first := works(t, s, kept[0])
	row := s.Usage(t, first.ID)
	step := func(t *testing.T, service, to string) {
		running := begin(t, s, kept[len(kept)-1])
		s.Swap(service, to)
		finish(t, s, kept[len(kept)-1], running)
		once(t, s, kept[0])
		for _, sandbox := range kept {
			works(t, s, sandbox)
		}
		whole(t, s)
		require.Equal(t, row.GetUsage().GetCpuMs(), s.Usage(t, first.ID).GetUsage().GetCpuMs())
		require.Equal(t, first.Completed.GetUsageEventId(), s.Receipt(t, first.ID).GetCompleted().GetUsageEventId())
	}
	// Consumers go before producers, as an upgrade does; a step back goes the same way, so that the newest gateway stands before
	// the oldest worker as well.
	for _, service := range stack.Services {
		t.Run("with the present "+service, func(t *testing.T) { step(t, service, present) })
	}
	t.Run("an event of a version to come", func(t *testing.T) { future(t, s, true) })
	kept = append(kept, s.Ready(t))
	for _, service := range stack.Services {
		t.Run("with the previous "+service, func(t *testing.T) { step(t, service, previous) })
	}
	t.Run("an event of the present version", func(t *testing.T) { future(t, s, false) })
	for _, sandbox := range kept {
		require.Equal(t, []string{"SandboxRequested", "SandboxStarting", "SandboxReady"}, withoutSamples(s.SandboxEvents(t, sandbox)))
		s.Destroy(t, sandbox)
	}
	replays(t, s)
}

func withoutSamples(events []string) []string {
	return slices.DeleteFunc(events, func(e string) bool { return e == "SandboxUsageSampled" })
}

func TestUpGoesOnWhereAnotherVersionEnded(t *testing.T) {
	needsHost(t)
	previous, present := versions(t)
	s := stack.UpOf(t, previous)
	var kept []string
	for _, to := range []string{present, previous, present} {
		kept = append(kept, s.Ready(t))
		running := begin(t, s, kept[0])
		s.Interrupt("up")
		s.RestartOf(to)
		finish(t, s, kept[0], running)
		for _, sandbox := range kept {
			works(t, s, sandbox)
		}
		whole(t, s)
	}
	for _, sandbox := range kept {
		s.Destroy(t, sandbox)
	}
	replays(t, s)
}

func TestTheCorpusHoldsEveryEventOfThePreviousVersion(t *testing.T) {
	needsHost(t)
	tree := t.TempDir()
	require.NoError(t, source(root, tree))
	then := filepath.Join(tree, "proto", "corpus")
	seen := 0
	require.NoError(t, filepath.WalkDir(then, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(then, path)
		require.NoError(t, err)
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		have, err := os.ReadFile(filepath.Join(root, "proto", "corpus", rel))
		require.NoError(t, err, "an event that was written is never taken out of the corpus")
		require.Equal(t, want, have, "%s is what stands in logs", rel)
		seen++
		return nil
	}))
	require.NotZero(t, seen)
}
