package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// The quickstart as it is written, with a grpcurl that is built as its users get it.
func quickstart(t *testing.T, s *stack.Stack) {
	t.Helper()
	cmd := exec.Command(filepath.Join(stack.Root(t), "scripts/quickstart.sh"))
	cmd.Env = append(os.Environ(), "GRPC="+strings.Replace(s.GRPC, "127.0.0.1", "localhost", 1), "CLICKHOUSE="+s.ClickHouse, "STATE="+s.State)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "Quickstart passed")
	t.Logf("%s", out)
}

func TestQuickstartOnUp(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs real sandboxes and ClickHouse")
	}
	quickstart(t, stack.Up(t))
}

func TestQuickstartOnProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs real sandboxes and ClickHouse")
	}
	quickstart(t, stack.Processes(t))
}
