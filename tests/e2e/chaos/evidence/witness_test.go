package evidence

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

// A workspace that was not unmounted has in its journal what its last programs wrote.
func TestAWitnessIsReadFromAnImageWhoseJournalIsNotReplayed(t *testing.T) {
	require.Zero(t, os.Getuid(), "mounting needs root")
	dir := t.TempDir()
	image, taken, at := filepath.Join(dir, "image"), filepath.Join(dir, "taken"), filepath.Join(dir, "at")
	require.NoError(t, os.Mkdir(at, 0o755))
	require.NoError(t, os.WriteFile(image, nil, 0o600))
	require.NoError(t, os.Truncate(image, 64<<20))
	command := func(name string, args ...string) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), program(name), args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	command("mkfs.ext4", "-q", "-F", image)
	command("mount", "-o", "loop", image, at)
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	const want = "token-1\ntoken-2\n"
	require.NoError(t, os.WriteFile(filepath.Join(at, journal.Witness), []byte("token-1\n"), 0o600))
	f, err := os.OpenFile(filepath.Join(at, journal.Witness), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString("token-2\n")
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
	// As it lies there now, mounted: in the journal and not in its place.
	command("cp", "--sparse=always", image, taken)
	before, err := os.ReadFile(taken)
	require.NoError(t, err)
	dirty, err := unclean(taken)
	require.NoError(t, err)
	require.True(t, dirty)

	got, err := readImage(t.Context(), taken)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
	after, err := os.ReadFile(taken)
	require.NoError(t, err)
	require.Equal(t, before, after, "the evidence itself is left as it is")
}
