package workspace

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
)

func TestAWarmWorkspaceIsASandboxsOnce(t *testing.T) {
	both(t, func(t *testing.T, o Options) {
		s := open(t, o)
		w, id := ids.New(), ids.New()
		path, err := s.Reserve(t.Context(), w, MinBytes)
		require.NoError(t, err)
		require.Equal(t, s.WarmPath(w), path)
		before, err := os.Stat(path)
		require.NoError(t, err)
		_, err = s.Reserve(t.Context(), w, MinBytes)
		require.Error(t, err, "w is used once")
		all, err := s.List()
		require.NoError(t, err)
		require.Empty(t, all, "it is no sandbox's")
		require.False(t, s.Exists(w))

		// What has a workspace keeps it.
		other := ids.New()
		_, err = s.Create(t.Context(), other, MinBytes)
		require.NoError(t, err)
		require.Equal(t, fault.Conflict, fault.CodeOf(s.Adopt(w, other)))

		for range 2 {
			require.NoError(t, s.Adopt(w, id))
		}
		require.Error(t, s.Adopt(w, ids.New()), "it is another's")
		after, err := os.Stat(s.Path(id))
		require.NoError(t, err)
		require.True(t, os.SameFile(before, after))
		again, err := s.Create(t.Context(), id, MinBytes)
		require.NoError(t, err)
		require.Equal(t, s.Path(id), again, "it has the size that it was asked for with")
		require.NoError(t, s.Drop(w))
		require.True(t, s.Exists(id), "it is w's no longer")
		require.NoError(t, s.Delete(id))

		_, err = s.Reserve(t.Context(), w, MinBytes)
		require.NoError(t, err)
		for range 2 {
			require.NoError(t, s.Drop(w))
		}
		require.NoFileExists(t, path)
		require.NoDirExists(t, path)
		for _, bad := range []string{"", "../x"} {
			_, err = s.Reserve(t.Context(), bad, MinBytes)
			require.Error(t, err)
			require.Error(t, s.Adopt(bad, id))
			require.Error(t, s.Drop(bad))
		}
	})
}
