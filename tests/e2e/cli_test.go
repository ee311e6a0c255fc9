package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// The commands for named sandboxes as people type them, under both names of the program, against a real `up`.
func TestCommandsOfNamedSandboxes(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs sandboxes")
	}
	s := stack.Up(t)
	bin := t.TempDir()
	for _, name := range []string{"sandtrail", "sandrpod-cli"} {
		require.NoError(t, os.Symlink(filepath.Join(stack.Bin(t), "sandtrail"), filepath.Join(bin, name)))
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/cli",
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", bin+string(os.PathListSeparator)+e.Getenv("PATH"))
			e.Setenv("SANDTRAIL_CONFIG", filepath.Join(e.WorkDir, "config.json"))
			e.Setenv("SANDRPOD_API_URL", "http://"+s.HTTP)
			return nil
		},
	})
}
