package upgrade

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// root is the top of the tree, seen from this package.
const root = "../../.."

// A clone without history has no previous version to run; in any other a missing one is an error.
func TestMain(m *testing.M) {
	if err := git(root, os.Stdout, "cat-file", "-e", Previous+"^{commit}"); err != nil && cutOff(root) {
		fmt.Fprintf(os.Stdout, "no test of upgrades: commit %s is not here (get it with: git fetch --unshallow)\n", Previous)
		os.Exit(0)
	}
	code := m.Run()
	if err := stack.Clean(); err != nil {
		fmt.Fprintln(os.Stderr, "clean up:", err)
		code = 1
	}
	os.Exit(code)
}

// needsHost says why a test does not run with -short.
func needsHost(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: builds the previous version and runs real sandboxes")
	}
}

// versions are the directories of both versions' programs.
func versions(t *testing.T) (previous, present string) {
	t.Helper()
	cache := os.Getenv("SANDTRAIL_CACHE")
	if cache == "" {
		dir, err := os.UserCacheDir()
		require.NoError(t, err)
		cache = filepath.Join(dir, "sandtrail")
	}
	previous, err := binaries(root, cache)
	require.NoError(t, err)
	return previous, stack.Bin(t)
}

func TestATreeWithoutHistoryIsToldFromOneWithoutTheCommit(t *testing.T) {
	require.True(t, cutOff(t.TempDir()), "no clone at all")
	whole := t.TempDir()
	require.NoError(t, git(whole, os.Stdout, "init", "-q"))
	require.False(t, cutOff(whole))
	require.ErrorContains(t, source(whole, t.TempDir()), "not in this clone")
}
