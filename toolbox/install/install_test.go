package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheCopyRuns(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		require.NoError(t, To(dir))
	}
	// The running program is this test.
	out, err := exec.Command(filepath.Join(dir, Name), "-test.run=^$").CombinedOutput()
	require.NoError(t, err, string(out))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1)
}

func TestACopyThatFailsLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	require.Error(t, copyTo(filepath.Join(dir, "none"), dir))
	require.Error(t, copyTo(dir, dir), "a directory is no program")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
	require.Error(t, To(filepath.Join(dir, "none")))
}
