package archive_test

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/archive"
)

type heard struct {
	skipped []string
	done    int64
}

func (h *heard) told() archive.Told {
	return archive.Told{
		Skipped: func(name, _ string) { h.skipped = append(h.skipped, name) },
		Copied:  func(_ string, done int64) { h.done = done },
	}
}

var then = time.Date(2001, 2, 3, 4, 5, 6, 700, time.UTC)

// A directory that is packed and unpacked is the same.
func TestADirectoryThereAndBack(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "new", "dir")
	put := func(name, data string, mode os.FileMode) {
		at := filepath.Join(from, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		require.NoError(t, os.WriteFile(at, []byte(data), 0o600))
		require.NoError(t, os.Chmod(at, mode))
		require.NoError(t, os.Chtimes(at, then, then))
	}
	put("a/run", "#!/bin/sh\n", 0o751)
	put("a/ odd \"name\"\n", "x", 0o600)
	put("empty", "", 0o444)
	require.NoError(t, os.Symlink("a/run", filepath.Join(from, "link")))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(from, "out")))
	require.NoError(t, unix.Mkfifo(filepath.Join(from, "fifo"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(from, "hollow"), 0o700))
	require.NoError(t, os.Chtimes(filepath.Join(from, "a"), then, then))

	size, err := archive.Size(from)
	require.NoError(t, err)
	require.EqualValues(t, 11, size)
	var stream bytes.Buffer
	packed := &heard{}
	require.NoError(t, archive.Pack(&stream, from, packed.told()))
	require.Equal(t, []string{"fifo"}, packed.skipped)
	require.EqualValues(t, 11, packed.done)
	unpacked := &heard{}
	for range 2 { // over what is there
		n, err := archive.Unpack(bytes.NewReader(stream.Bytes()), to, unpacked.told())
		require.NoError(t, err)
		require.Equal(t, 3, n)
	}
	require.Equal(t, []string{"out", "out"}, unpacked.skipped)
	for name, mode := range map[string]os.FileMode{
		"a/run": 0o751, "a/ odd \"name\"\n": 0o600, "empty": 0o444, "a": os.ModeDir | 0o755, "hollow": os.ModeDir | 0o700, "link": 0o751,
	} {
		info, err := os.Stat(filepath.Join(to, name))
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode(), name)
		if name != "hollow" {
			require.True(t, info.ModTime().Equal(then), name)
		}
	}
	data, err := os.ReadFile(filepath.Join(to, "link"))
	require.NoError(t, err)
	require.Equal(t, "#!/bin/sh\n", string(data))
}

// What a server sends gets nowhere else.
func TestAHostileArchive(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "dir")
	pack := func(all ...tar.Header) io.Reader {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range all {
			h.Mode, h.ModTime = 0o755, then
			require.NoError(t, w.WriteHeader(&h))
		}
		require.NoError(t, w.Close())
		return &b
	}
	for _, name := range []string{"../x", "/x", "a/../../x"} {
		_, err := archive.Unpack(pack(tar.Header{Typeflag: tar.TypeReg, Name: name}), dir, (&heard{}).told())
		require.Error(t, err, name)
	}
	require.NoError(t, os.Symlink(base, filepath.Join(dir, "there")))
	_, err := archive.Unpack(pack(tar.Header{Typeflag: tar.TypeReg, Name: "there/x"}), dir, (&heard{}).told())
	require.Error(t, err)
	h := &heard{}
	_, err = archive.Unpack(pack(
		tar.Header{Typeflag: tar.TypeSymlink, Name: "up", Linkname: ".."},
		tar.Header{Typeflag: tar.TypeReg, Name: "up/x"},
		tar.Header{Typeflag: tar.TypeLink, Name: "hard", Linkname: "../x"},
		tar.Header{Typeflag: tar.TypeChar, Name: "null"},
	), dir, h.told())
	require.NoError(t, err)
	require.Equal(t, []string{"hard", "null", "up"}, h.skipped)
	found, err := os.ReadDir(base)
	require.NoError(t, err)
	require.Len(t, found, 1)
}
