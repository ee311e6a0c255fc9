package files

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

func remover(f *Files) func(path string, recursive bool) error {
	return func(path string, recursive bool) error {
		_, err := f.Delete(&toolboxv1.DeleteFile{Path: path, Recursive: recursive})
		return err
	}
}

func TestDelete(t *testing.T) {
	f, ws := workspace(t)
	remove := remover(f)
	outside := filepath.Join(filepath.Dir(ws), "outside")
	at := func(name string) string { return filepath.Join(ws, name) }
	require.NoError(t, os.MkdirAll(at("d/e/g"), 0o755))
	for _, name := range []string{"f", "d/f", "d/e/f"} {
		require.NoError(t, os.WriteFile(at(name), nil, 0o600))
	}
	require.NoError(t, os.Symlink("../outside", at("link")))
	require.NoError(t, os.Symlink("../../outside", at("d/link")))
	require.NoError(t, os.Symlink("nowhere", at("dangling")))
	require.NoError(t, unix.Mkfifo(at("fifo"), 0o600))
	require.NoError(t, os.Mkdir(at("empty"), 0o755))

	for _, c := range []struct{ path, reason string }{
		{"none", "path_not_found"},
		{"none/f", "path_not_found"},
		{"f/g", "path_not_directory"},
		{"d", "path_not_empty"},
		{"../secret", "path_escapes"},
		{"link/f", "path_escapes"},
		{"/etc/passwd", "path_escapes"},
		{".", "validation"},
		{"", "validation"},
		{"/workspace", "validation"},
		{tempPrefix + "x", "validation"},
		{"a\x00b", "validation"},
	} {
		require.Equal(t, c.reason, reason(t, remove(c.path, false)), c.path)
	}
	require.Equal(t, "path_escapes", reason(t, remove("link/f", true)))
	for _, name := range []string{"f", "link", "dangling", "fifo", "empty"} {
		require.NoError(t, remove(name, false), name)
		_, err := os.Lstat(at(name))
		require.ErrorIs(t, err, os.ErrNotExist, name)
	}
	require.NoError(t, remove("/workspace/d", true))
	require.NoFileExists(t, at("d"))
	require.FileExists(t, filepath.Join(outside, "f"), "what a link points to stays")
}

// What a guest swaps while it is removed leads nowhere else.
func TestDeleteWhileTheGuestSwaps(t *testing.T) {
	f, ws := workspace(t)
	remove := remover(f)
	outside := filepath.Join(filepath.Dir(ws), "outside")
	var stop atomic.Bool
	var guest sync.WaitGroup
	guest.Go(func() {
		for !stop.Load() {
			_ = os.MkdirAll(filepath.Join(ws, "d", "x"), 0o755)
			_ = os.WriteFile(filepath.Join(ws, "d", "x", "f"), nil, 0o600)
			_ = os.Rename(filepath.Join(ws, "d", "x"), filepath.Join(ws, "aside"))
			_ = os.Symlink(outside, filepath.Join(ws, "d", "x"))
			_ = os.RemoveAll(filepath.Join(ws, "aside"))
		}
	})
	for range 500 {
		_ = remove("d", true)
		_ = remove("d/x/f", false)
	}
	stop.Store(true)
	guest.Wait()
	require.FileExists(t, filepath.Join(outside, "f"))
}

// A tree that is deeper than there are descriptors does not cost the toolbox all of its own.
func TestDeleteOfADeepTree(t *testing.T) {
	f, ws := workspace(t)
	dir, err := os.Open(ws)
	require.NoError(t, err)
	for range maxDepth + 20 {
		require.NoError(t, unix.Mkdirat(int(dir.Fd()), "d", 0o755))
		fd, err := unix.Openat(int(dir.Fd()), "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		require.NoError(t, err)
		require.NoError(t, dir.Close())
		dir = os.NewFile(uintptr(fd), "d")
	}
	require.NoError(t, dir.Close())
	require.Equal(t, "too_large", reason(t, remover(f)("d", true)))
	require.NoError(t, remover(f)(strings.Repeat("d/", 60)+"d", true), "from below it works")
	require.NoError(t, remover(f)("d", true))
}

func TestStat(t *testing.T) {
	f, ws := workspace(t)
	require.NoError(t, write(f, "f", "content"))
	stat := func(path string, digest bool) (*toolboxv1.StatFileReply, error) {
		return f.Stat(&toolboxv1.StatFile{Path: path, Digest: digest})
	}
	first, err := stat("f", true)
	require.NoError(t, err)
	require.EqualValues(t, 7, first.Size)
	require.Equal(t, sum("content"), first.Sha256)
	require.True(t, first.Unsettled, "it was written just now")
	plain, err := stat("f", false)
	require.NoError(t, err)
	require.Empty(t, plain.Sha256)
	require.Equal(t, first.Version, plain.Version)
	part, err := f.Read(&toolboxv1.ReadFile{Path: "f"})
	require.NoError(t, err)
	require.Equal(t, first.Version, part.Version)

	require.NoError(t, write(f, "f", "CONTENT"))
	next, err := stat("f", false)
	require.NoError(t, err)
	require.NotEqual(t, first.Version, next.Version, "another content of the same size")

	require.NoError(t, os.Symlink("f", filepath.Join(ws, "inside")))
	require.NoError(t, os.Symlink("../secret", filepath.Join(ws, "outside")))
	require.NoError(t, unix.Mkfifo(filepath.Join(ws, "fifo"), 0o600))
	_, err = stat("inside", true)
	require.NoError(t, err)
	for path, want := range map[string]string{"outside": "path_escapes", "fifo": "path_not_file", ".": "path_not_file", "none": "path_not_found"} {
		_, err = stat(path, true)
		require.Equal(t, want, reason(t, err), path)
	}
	if err := unix.Mknod(filepath.Join(ws, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); !errors.Is(err, syscall.EPERM) {
		require.NoError(t, err)
		_, err = stat("null", true)
		require.Equal(t, "path_not_file", reason(t, err))
		_, err = read(f, "null")
		require.Equal(t, "path_not_file", reason(t, err))
		require.Equal(t, "path_not_file", reason(t, write(f, "null", "x")))
	}
}

// An upload that is given up leaves nothing, and makes room.
func TestAbortedUploads(t *testing.T) {
	f, ws := workspace(t)
	for range 3 * MaxUploads {
		_, err := f.Write(&toolboxv1.WriteFile{Path: "f", UploadId: "a", Data: []byte("x")})
		require.NoError(t, err)
		_, err = f.Write(&toolboxv1.WriteFile{Path: "f", UploadId: "a", Abort: true})
		require.NoError(t, err)
	}
	_, err := f.Write(&toolboxv1.WriteFile{Path: "f", UploadId: "unknown", Abort: true})
	require.NoError(t, err)
	left, err := os.ReadDir(ws)
	require.NoError(t, err)
	require.Empty(t, left)
	_, err = f.Write(&toolboxv1.WriteFile{Path: "f", UploadId: "a", Offset: 1, Data: []byte("x"), Last: true})
	require.Equal(t, "illegal_state", reason(t, err))
}

// Uploads that finish under one id are one write: the second is answered as the first.
func TestUploadsThatFinishUnderOneID(t *testing.T) {
	f, ws := workspace(t)
	send := func(upload string) *toolboxv1.WriteFileReply {
		t.Helper()
		_, err := f.Write(&toolboxv1.WriteFile{Path: "f", UploadId: upload, Data: []byte("ab")})
		require.NoError(t, err)
		reply, err := f.Write(&toolboxv1.WriteFile{Path: "f", UploadId: upload, Offset: 2, Data: []byte("c"), Last: true, FinishId: "once"})
		require.NoError(t, err)
		return reply
	}
	first := send("one")
	require.NoError(t, os.WriteFile(filepath.Join(ws, "f"), []byte("of the guest"), 0o600))
	require.Equal(t, first.Sha256, send("two").Sha256)
	there, err := read(f, "f")
	require.NoError(t, err)
	require.Equal(t, "of the guest", there)
	left, err := os.ReadDir(ws)
	require.NoError(t, err)
	require.Len(t, left, 1)
}

// The pages of a directory have each entry once, also names that are no text.
func TestPagesOfADirectory(t *testing.T) {
	f, ws := workspace(t)
	want := []string{"-", "a", "a b", "b\n", "é", "\xff", "\xff\xfe"}
	for _, name := range want {
		require.NoError(t, os.WriteFile(filepath.Join(ws, name), nil, 0o600))
	}
	for size := uint32(1); size <= 8; size++ {
		var got []string
		r := &toolboxv1.ListFiles{MaxEntries: size}
		for pages := 0; ; pages++ {
			require.Less(t, pages, 10)
			reply, err := f.List(r)
			require.NoError(t, err)
			for _, e := range reply.Entries {
				got = append(got, e.Path)
			}
			require.Equal(t, reply.Truncated, len(reply.Next) > 0)
			if r.After = reply.Next; !reply.Truncated {
				break
			}
		}
		require.Len(t, got, len(want))
		require.Equal(t, []string{"-", "a", "a b", "b\n", "é"}, got[:5])
	}
	_, err := f.List(&toolboxv1.ListFiles{After: []byte("a"), Recursive: true})
	require.Equal(t, "validation", reason(t, err))
	_, err = f.List(&toolboxv1.ListFiles{After: make([]byte, 256)})
	require.Equal(t, "validation", reason(t, err))
}
