package powerloss

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// The log goes back to an earlier moment while everything beside it stands: the host with its sandboxes, and ClickHouse.
func TestWhatTheLogLostIsNowhereAfterwards(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs real sandboxes and cuts the power of the log's disk; needs root")
	}
	state := stack.StateDir(t)
	disk, err := NewDisk(state, "nats")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, disk.Unmount()) })
	s := stack.UpIn(t, stack.Bin(t), state, "--sync-interval", "1h")
	kept := s.Ready(t)
	before := s.Sh(t, kept, "echo before")
	s.Usage(t, before.ID)
	flushAll(t, disk.Dir)

	after := s.Sh(t, kept, "echo after")
	lost := s.Ready(t)
	gone := s.Sh(t, lost, "echo gone")
	s.Usage(t, after.ID)
	s.Usage(t, gone.ID)
	s.Destroy(t, lost)
	require.NoError(t, disk.Cut())
	s.Kill("up")
	require.NoError(t, disk.Revive())
	// What the kernel says of its boot stays the same here.
	require.NoError(t, os.WriteFile(filepath.Join(disk.Dir, "sandtrail.boot"), []byte("another boot\n"), 0o600))
	s.Restart()

	require.Equal(t, computev1.SandboxStatus_SANDBOX_STATUS_READY, s.Describe(t, kept).GetStatus())
	require.Equal(t, "still here\n", string(s.Sh(t, kept, "echo still here").Stdout))
	list, err := s.API.ListSandboxes(t.Context(), &computev1.ListSandboxesRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetSandboxes(), 1)
	_, err = s.API.DescribeSandbox(t.Context(), &computev1.DescribeSandboxRequest{SandboxId: lost})
	require.Equal(t, codes.NotFound, status.Code(err))
	for _, exec := range []string{after.ID, gone.ID} {
		_, err = s.API.GetExec(t.Context(), &computev1.GetExecRequest{ExecId: exec})
		require.Equal(t, codes.NotFound, status.Code(err), "%v", err)
	}
	require.Equal(t, "before\n", string(before.Stdout))
	require.Zero(t, s.Receipt(t, before.ID).GetCompleted().GetExitCode())
	require.Contains(t, s.Log("up"), "views and rows are made again")
	// As many rows as execs in the log, and none of another exec.
	rows := func(exec string) string {
		return strings.TrimSpace(s.Query(t, "SELECT count() FROM agents.usage_events WHERE exec_id = '"+exec+"'"))
	}
	require.Eventually(t, func() bool {
		return rows(before.ID) == "1" && rows(after.ID) == "0" && rows(gone.ID) == "0"
	}, time.Minute, 100*time.Millisecond)
	s.Usage(t, s.Exec(t, kept, "true").ID)
	s.Destroy(t, kept)
}

// flushAll writes everything out that stands in memory.
func flushAll(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Open(dir)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, unix.Syncfs(int(f.Fd())))
}
