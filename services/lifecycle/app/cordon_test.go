package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestACordonStandsUntilItIsEnded(t *testing.T) {
	dir := t.TempDir()
	require.Empty(t, cordoned(dir))
	require.Empty(t, cordoned(""))
	require.NoError(t, Uncordon(dir), "there is none")
	require.NoError(t, Cordon(dir, "a new kernel"))
	require.Equal(t, "a new kernel", cordoned(dir))
	require.NoError(t, Cordon(dir, "another disk"))
	require.Equal(t, "another disk", cordoned(dir))
	for _, bad := range []string{"", " ", "a\nb", strings.Repeat("x", maxCordon+1), "\u00e9"} {
		require.Error(t, Cordon(dir, bad))
	}
	require.Error(t, Cordon(filepath.Join(dir, "absent"), "x"))
	require.Equal(t, "another disk", cordoned(dir))

	require.NoError(t, os.WriteFile(filepath.Join(dir, cordonFile), nil, 0o600))
	require.Equal(t, noReason, cordoned(dir), "a file by hand counts")
	require.NoError(t, Uncordon(dir))
	require.Empty(t, cordoned(dir))
}
