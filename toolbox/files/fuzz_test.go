package files

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

// FuzzPath: no path, through whatever links, reads, lists or changes anything outside of the workspace; what is refused has a reason.
func FuzzPath(f *testing.F) {
	base := f.TempDir()
	ws, outside := filepath.Join(base, "ws"), filepath.Join(base, "outside")
	for _, dir := range []string{ws, outside, filepath.Join(ws, "d")} {
		require.NoError(f, os.Mkdir(dir, 0o755))
	}
	hidden := filepath.Join(outside, "f")
	require.NoError(f, os.WriteFile(hidden, []byte(secret), 0o600))
	for name, to := range map[string]string{"up": "../outside", "abs": outside, "file": "../outside/f", "loop": "loop", "in": "d", "new": "../outside/new"} {
		require.NoError(f, os.Symlink(to, filepath.Join(ws, name)))
	}
	for _, p := range []string{
		"", ".", "/", "/workspace", "/workspace/d/x", "d/x", "in/x", "up/f", "abs/f", "file", "new", "loop", "../outside/f", "d/../../outside/f", "/workspace/../outside/f", outside + "/f", "/workspacex",
		"a\x00b", "//workspace//d", "./d/./x", "\xff", "d/", "up", "-rf", "d/x/y",
	} {
		f.Add(p, []byte("data"))
	}
	w, err := Open(Options{Dir: ws, MountPath: "/workspace", MaxFile: 1 << 20})
	require.NoError(f, err)
	f.Cleanup(func() { w.Close() })
	f.Fuzz(func(t *testing.T, p string, data []byte) {
		reasoned := func(err error) {
			if err != nil {
				var e *wire.Error
				require.ErrorAs(t, err, &e, "%q", p)
				require.NotContains(t, e.Message, base)
			}
		}
		got, err := read(w, p)
		reasoned(err)
		require.NotContains(t, got, secret)
		if _, err = w.List(&toolboxv1.ListFiles{Path: p}); err != nil {
			reasoned(err)
		}
		if err = write(w, p, string(data)); err == nil {
			got, err := read(w, p)
			require.NoError(t, err)
			require.Equal(t, string(data), got)
		} else {
			reasoned(err)
		}
		names, err := os.ReadDir(outside)
		require.NoError(t, err)
		require.Len(t, names, 1)
		kept, err := os.ReadFile(hidden)
		require.NoError(t, err)
		require.Equal(t, secret, string(kept))
		names, err = os.ReadDir(base)
		require.NoError(t, err)
		require.Len(t, names, 2)
	})
}
