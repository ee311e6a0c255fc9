package files

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

var long = time.Date(2001, 2, 3, 4, 5, 6, 789, time.UTC)

func TestModeAndTimeAreKept(t *testing.T) {
	f, ws := workspace(t)
	put := func(path string) {
		t.Helper()
		_, err := f.Write(&toolboxv1.WriteFile{Path: path, Data: []byte("x"), Last: true, Mode: 0o640, ModifiedAt: timestamppb.New(long)})
		require.NoError(t, err)
	}
	put("d/f")
	require.NoError(t, os.Symlink("d/f", filepath.Join(ws, "link")))
	put("link")
	st, err := f.Stat(&toolboxv1.StatFile{Path: "d/f"})
	require.NoError(t, err)
	require.EqualValues(t, 0o640, st.Mode)
	require.Equal(t, long, st.ModifiedAt.AsTime())

	_, err = f.Make(&toolboxv1.MakeEntry{Path: "d", Mode: 0o710, ModifiedAt: timestamppb.New(long)})
	require.NoError(t, err)
	info, err := os.Stat(filepath.Join(ws, "d"))
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|0o710, info.Mode())
	require.True(t, info.ModTime().Equal(long))
	_, err = f.Write(&toolboxv1.WriteFile{Path: "g", Last: true, ModifiedAt: &timestamppb.Timestamp{Seconds: 1 << 60}})
	require.Equal(t, "validation", reason(t, err))
}

func TestEntriesAreMade(t *testing.T) {
	f, ws := workspace(t)
	make := func(path, symlink, hardlink string) error {
		_, err := f.Make(&toolboxv1.MakeEntry{Path: path, Symlink: symlink, Hardlink: hardlink})
		return err
	}
	require.NoError(t, write(f, "f", "content"))
	for range 2 { // each may be made again
		require.NoError(t, make("a/b/c", "", ""))
		require.NoError(t, make("a/b/link", "../../f", ""))
		require.NoError(t, make("a/hard", "", "f"))
		require.NoError(t, make("other", "", "/workspace/a/hard"))
	}
	for _, path := range []string{"a/b/link", "a/hard", "other"} {
		got, err := read(f, path)
		require.NoError(t, err)
		require.Equal(t, "content", got)
	}
	require.Equal(t, []string{"a", "f", "other"}, list(t, f, &toolboxv1.ListFiles{}), "nothing else is left")
	require.NoError(t, write(f, "g", "new"))
	require.NoError(t, make("g", "f", ""), "a link takes the place of a file")
	got, err := read(f, "g")
	require.NoError(t, err)
	require.Equal(t, "content", got)

	require.Equal(t, "path_not_directory", reason(t, make("f", "", "")))
	require.Equal(t, "path_not_directory", reason(t, make("f/below", "", "")))
	require.Equal(t, "path_not_file", reason(t, make("a", "f", "")), "a directory stays")
	require.Equal(t, "path_not_file", reason(t, make("a", "", "f")))
	require.DirExists(t, filepath.Join(ws, "a", "b"))
	require.Equal(t, "path_not_found", reason(t, make("x", "", "none")))
	require.Equal(t, "validation", reason(t, make("x", "a", "b")))
	require.Equal(t, "validation", reason(t, make("d/"+tempPrefix+"x", "", "")))
	require.NoFileExists(t, filepath.Join(ws, "x"))
	require.NoError(t, make("", "", ""), "the workspace is there")
}

func TestNothingIsMadeOutside(t *testing.T) {
	f, ws := workspace(t)
	require.NoError(t, os.Mkdir(filepath.Join(ws, "d"), 0o755))
	require.NoError(t, os.Symlink("../../outside", filepath.Join(ws, "d", "out")))
	for _, r := range []*toolboxv1.MakeEntry{
		{Path: "../x"},
		{Path: "/etc/x"},
		{Path: "d/out/x"},
		{Path: "d/out/x", Symlink: "f"},
		{Path: "d/out/x", Hardlink: "f"},
		{Path: "x", Symlink: "/etc/passwd"},
		{Path: "x", Symlink: "../secret"},
		{Path: "d/x", Symlink: "../../secret"},
		{Path: "x", Hardlink: "../secret"},
		{Path: "x", Hardlink: "d/out/f"},
		{Path: "x", Hardlink: "/etc/passwd"},
	} {
		require.NoError(t, write(f, "f", "x"))
		_, err := f.Make(r)
		require.Equal(t, "path_escapes", reason(t, err), "%v", r)
	}
	found, err := os.ReadDir(filepath.Join(ws, "..", "outside"))
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.NoFileExists(t, filepath.Join(ws, "x"))
}

// An upload whose sender is gone for good goes although nobody writes again.
func TestAnAbandonedUploadGoesByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, ws := workspace(t)
		_, err := f.Write(&toolboxv1.WriteFile{Path: "f", UploadId: "u", Data: []byte("half")})
		require.NoError(t, err)
		found, err := os.ReadDir(ws)
		require.NoError(t, err)
		require.Len(t, found, 1)
		<-time.After(UploadIdle + 2*time.Second) // of the bubble's clock
		found, err = os.ReadDir(ws)
		require.NoError(t, err)
		require.Empty(t, found)
	})
}
