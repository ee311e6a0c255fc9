package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// grown watches a directory with a bound on the directories of its tree.
func grown(t *testing.T, most int) (root string, next func() []Event) {
	t.Helper()
	root = t.TempDir()
	var all []Event
	tr, err := newTree(root, true, func(e Event) { all = append(all, e) })
	require.NoError(t, err)
	tr.most = most
	require.NoError(t, unix.SetNonblock(tr.fd, true))
	t.Cleanup(func() { require.NoError(t, unix.Close(tr.fd)) })
	return root, func() []Event {
		buf := make([]byte, 64<<10)
		for {
			n, err := unix.Read(tr.fd, buf)
			if err != nil {
				break
			}
			require.True(t, tr.handle(buf[:n]))
			require.Len(t, tr.numbers, len(tr.names))
		}
		told := all
		all = nil
		return told
	}
}

func TestTreesAreWatchedUpToABound(t *testing.T) {
	root, next := grown(t, 3)
	for i := range 4 {
		require.NoError(t, os.Mkdir(filepath.Join(root, fmt.Sprint(i)), 0o755))
	}
	all := next()
	require.Contains(t, all, Event{"2", Overflow})
	require.Contains(t, all, Event{"3", Create})
	require.NoError(t, os.WriteFile(filepath.Join(root, "1/f"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(root, "3/f"), nil, 0o600))
	require.Equal(t, []Event{{"1/f", Create}}, next())
	// What is gone makes room.
	require.NoError(t, os.RemoveAll(filepath.Join(root, "1")))
	next()
	require.NoError(t, os.Mkdir(filepath.Join(root, "4"), 0o755))
	require.Equal(t, []Event{{"4", Create}}, next())
	require.NoError(t, os.WriteFile(filepath.Join(root, "4/f"), nil, 0o600))
	require.Contains(t, next(), Event{"4/f", Create})
}

// A link to a directory is a file: what it leads to may be elsewhere, or above.
func TestLinksAreNotFollowed(t *testing.T) {
	root, next := grown(t, 100)
	require.NoError(t, os.Symlink("/", filepath.Join(root, "link")))
	require.NoError(t, os.Symlink(".", filepath.Join(root, "self")))
	require.Equal(t, []Event{{"link", Create}, {"self", Create}}, next())
	require.NoError(t, os.WriteFile(filepath.Join(root, "f"), nil, 0o600))
	require.Equal(t, []Event{{"f", Create}}, next())
}

func TestDirectoriesThatMoveKeepTheirNumberAndGetTheirName(t *testing.T) {
	root, next := grown(t, 100)
	require.NoError(t, os.MkdirAll(filepath.Join(root, "a/b"), 0o755))
	next()
	for _, names := range [][2]string{{"a", "c"}, {"c", "d"}, {"d", "a"}} {
		require.NoError(t, os.Rename(filepath.Join(root, names[0]), filepath.Join(root, names[1])))
		require.Equal(t, []Event{{names[0], Rename}, {names[1], Create}, {names[1] + "/b", Create}}, next()[:3])
		require.NoError(t, os.WriteFile(filepath.Join(root, names[1], "b", "of-"+names[1]), nil, 0o600))
		require.Equal(t, []Event{{names[1] + "/b/of-" + names[1], Create}}, next())
	}
}

// FuzzEvents: whatever a kernel says, it is read without a fault.
func FuzzEvents(f *testing.F) {
	f.Add(make([]byte, headBytes))
	f.Add(append(make([]byte, 12), 8, 0, 0, 0, 'a', 0, 0, 0, 0, 0, 0, 0))
	f.Fuzz(func(t *testing.T, data []byte) {
		tr := &tree{fd: -1, names: map[int]string{0: "."}, numbers: map[string]int{".": 0}, most: 1, tell: func(e Event) {
			if e.Name == "" || e.Type == "" {
				t.Fatalf("%q tells %v", data, e)
			}
		}}
		tr.handle(data)
	})
}
