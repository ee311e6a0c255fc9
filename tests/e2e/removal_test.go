package e2e

import (
	"bytes"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

func TestARemovalThatIsKilledAnywhereLeavesNothing(t *testing.T) {
	needsHost(t)
	s := stack.Processes(t, stack.Extra{"lifecycle": {"--keep-workspace", "2s", "--orphan-grace", "1s"}, "gc": {"--every", "1s"}})
	s.Second("gc", "--every", "1s") // two sweep at once, all the time
	killAfter := func(what string, most time.Duration) {
		wait := rand.N(most)
		t.Logf("kill %s after %s", what, wait)
		timer := time.NewTimer(wait)
		defer timer.Stop()
		<-timer.C
		s.Kill(what)
		s.Respawn(what)
	}
	var gone []string
	for range 4 {
		sandbox := s.Ready(t)
		gone = append(gone, sandbox)
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			// Whether the answer arrives is another matter.
			_, _ = s.API.DestroySandbox(t.Context(), &computev1.DestroySandboxRequest{SandboxId: sandbox})
		}()
		killAfter("lifecycle", 300*time.Millisecond)
		<-asked
		killAfter([]string{"lifecycle", "gc"}[rand.N(2)], 3*time.Second)
	}
	for _, sandbox := range gone {
		require.Eventually(t, func() bool { return len(leftOf(t, s, sandbox)) == 0 }, 2*time.Minute, 100*time.Millisecond,
			"left of %s: %v", sandbox, leftOf(t, s, sandbox))
		var ends []string
		require.Eventually(t, func() bool {
			ends = nil
			for _, e := range s.Events(t, sandbox) {
				if short := e.GetType()[strings.LastIndexByte(e.GetType(), '.')+1:]; strings.HasSuffix(short, "Destroyed") || strings.HasPrefix(short, "Workspace") {
					ends = append(ends, short)
				}
			}
			return len(ends) >= 3
		}, time.Minute, 100*time.Millisecond)
		require.ElementsMatch(t, []string{"SandboxDestroyed", "WorkspaceReleased", "WorkspaceDeleted"}, ends, "each once")
	}
}

// leftOf is everything on this host that belongs to a sandbox.
func leftOf(t *testing.T, s *stack.Stack, sandbox string) []string {
	t.Helper()
	var found []string
	for _, dir := range []string{"sandboxes", "workspaces"} {
		entries, err := os.ReadDir(filepath.Join(s.State, dir))
		require.NoError(t, err)
		for _, e := range entries {
			if strings.Contains(e.Name(), sandbox) {
				found = append(found, filepath.Join(dir, e.Name()))
			}
		}
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	for _, p := range processes {
		environ, _ := os.ReadFile(filepath.Join(p, "environ"))
		mounts, _ := os.ReadFile(filepath.Join(p, "mountinfo"))
		if bytes.Contains(environ, []byte(sandbox)) || bytes.Contains(mounts, []byte(sandbox)) {
			found = append(found, p)
		}
	}
	for _, file := range loopsOf(t, s.State) {
		if strings.Contains(file, sandbox) {
			found = append(found, file)
		}
	}
	short := strings.ReplaceAll(sandbox, "-", "")
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (strings.Contains(d.Name(), sandbox) || strings.Contains(d.Name(), short)) {
			found = append(found, path)
		}
		return nil // groups come and go while they are listed
	})
	return found
}
