package cgroup

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each command and what it starts is in its group from the first instant, and this process stays where it was.
func TestStartedInside(t *testing.T) {
	before, err := os.ReadFile("/proc/self/cgroup")
	require.NoError(t, err)
	parent, err := Open(fmt.Sprintf("sandtrail-start-%d", os.Getpid()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, parent.Remove()) })
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			g, err := Open(fmt.Sprintf("sandtrail-start-%d/unit%d", os.Getpid(), i))
			if err == nil {
				err = g.Create(Limits{MemoryBytes: 64 << 20, PIDs: 20})
			}
			if err != nil {
				t.Error(err)
				return
			}
			for range 5 {
				inside(t, g, fmt.Sprintf("unit%d", i))
			}
			if err := g.Remove(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	threads, err := filepath.Glob("/proc/self/task/*/cgroup")
	require.NoError(t, err)
	for _, file := range threads {
		now, err := os.ReadFile(file)
		if err == nil {
			require.Equal(t, string(before), string(now), file)
		}
	}
}

// inside starts a shell in g, which shows where it is and where its child is.
func inside(t *testing.T, g *Group, name string) {
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "cat /proc/$$/cgroup; sh -c 'cat /proc/$$/cgroup'")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Error(err)
		return
	}
	if err := g.Start(cmd); err != nil {
		t.Error(err)
		return
	}
	used := map[string]bool{}
	for _, c := range v1Controllers {
		used[c] = g.v1[c] != ""
	}
	used[""] = g.v2 != ""
	found := 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		parts := strings.SplitN(lines.Text(), ":", 3)
		for _, c := range strings.Split(parts[1], ",") {
			if used[c] {
				found++
				if filepath.Base(parts[2]) != name {
					t.Errorf("%s is not in %s", lines.Text(), name)
				}
			}
		}
	}
	if err := cmd.Wait(); err != nil || found == 0 || found%2 != 0 {
		t.Errorf("%d lines: %v", found, err)
	}
}

func TestStartOfWhatIsNotThere(t *testing.T) {
	g, err := Open(fmt.Sprintf("sandtrail-start-%d-none", os.Getpid()))
	require.NoError(t, err)
	require.ErrorIs(t, g.Start(exec.CommandContext(t.Context(), "true")), os.ErrNotExist, "the group was not made")
	require.NoError(t, g.Create(Limits{}))
	t.Cleanup(func() { require.NoError(t, g.Remove()) })
	require.Error(t, g.Start(exec.CommandContext(t.Context(), "/none")))
	require.NoError(t, None().Start(exec.CommandContext(t.Context(), "true")))
}
