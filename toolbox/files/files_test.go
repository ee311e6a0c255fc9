package files

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

const secret = "only the host may see this"

// workspace is an open workspace in ws, beside a file and a directory that must never be reached.
func workspace(t *testing.T, change ...func(*Options)) (*Files, string) {
	t.Helper()
	base := t.TempDir()
	ws := filepath.Join(base, "ws")
	require.NoError(t, os.Mkdir(ws, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(base, "secret"), []byte(secret), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(base, "outside"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(base, "outside", "f"), []byte(secret), 0o600))
	o := Options{Dir: ws, MountPath: "/workspace"}
	for _, c := range change {
		c(&o)
	}
	f, err := Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f, ws
}

func read(f *Files, path string) (string, error) {
	r, err := f.Read(&toolboxv1.ReadFile{Path: path})
	return string(r.GetData()), err
}

func write(f *Files, path, data string) error {
	_, err := f.Write(&toolboxv1.WriteFile{Path: path, Data: []byte(data), Last: true})
	return err
}

func reason(t *testing.T, err error) string {
	t.Helper()
	var e *wire.Error
	require.ErrorAs(t, err, &e)
	return e.Reason
}

func list(t *testing.T, f *Files, r *toolboxv1.ListFiles) []string {
	t.Helper()
	reply, err := f.List(r)
	require.NoError(t, err)
	var paths []string
	for _, e := range reply.Entries {
		paths = append(paths, e.Path)
	}
	return paths
}

func TestNothingOutsideIsReached(t *testing.T) {
	f, ws := workspace(t)
	link := func(target, name string) { require.NoError(t, os.Symlink(target, filepath.Join(ws, name))) }
	require.NoError(t, os.Mkdir(filepath.Join(ws, "d"), 0o755))
	link("../secret", "last")
	link("../outside", "dir")
	link("../not-there", "dangling")
	link(filepath.Join(filepath.Dir(ws), "secret"), "absolute")
	link("/etc", "etc")
	link("dir", "link-to-link")
	link("../../outside", "d/deep")

	for _, path := range []string{
		"../secret", "d/../../secret", "/etc/passwd", "/workspace/../etc/passwd", "/workspaceful/f", "/",
		"last", "dir/f", "dangling", "dir/new", "absolute", "etc/passwd", "link-to-link/f", "d/deep/f", "/workspace/last",
	} {
		t.Run(path, func(t *testing.T) {
			_, err := read(f, path)
			require.Equal(t, "path_escapes", reason(t, err))
			require.Equal(t, "path_escapes", reason(t, write(f, path, "x")))
			_, err = f.Write(&toolboxv1.WriteFile{Path: path, Data: []byte("x"), Append: true, Last: true})
			require.Equal(t, "path_escapes", reason(t, err))
			_, err = f.List(&toolboxv1.ListFiles{Path: path})
			require.Equal(t, "path_escapes", reason(t, err))
		})
	}
	require.NoFileExists(t, filepath.Join(filepath.Dir(ws), "not-there"))
	left, err := os.ReadDir(filepath.Join(filepath.Dir(ws), "outside"))
	require.NoError(t, err)
	require.Len(t, left, 1)
	kept, err := os.ReadFile(filepath.Join(filepath.Dir(ws), "secret"))
	require.NoError(t, err)
	require.Equal(t, secret, string(kept))
	// Links that lead out are shown and not followed.
	require.NotContains(t, list(t, f, &toolboxv1.ListFiles{Recursive: true}), "dir/f")
}

func TestLinksThatStayInsideWork(t *testing.T) {
	f, ws := workspace(t)
	require.NoError(t, write(f, "real/file", "one"))
	require.NoError(t, os.Symlink("real", filepath.Join(ws, "d")))
	require.NoError(t, os.Symlink("../d/file", filepath.Join(ws, "real", "up")))
	require.NoError(t, os.Symlink("real/new", filepath.Join(ws, "dangling")))
	got, err := read(f, "d/up")
	require.NoError(t, err)
	require.Equal(t, "one", got)
	require.NoError(t, write(f, "d/up", "2"))
	got, err = read(f, "real/file")
	require.NoError(t, err)
	require.Equal(t, "2", got)
	info, err := os.Lstat(filepath.Join(ws, "real", "up"))
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&os.ModeSymlink, "the link must stay one")
	require.NoError(t, write(f, "dangling", "made"))
	got, err = read(f, "real/new")
	require.NoError(t, err)
	require.Equal(t, "made", got)
}

// A guest that swaps a directory for a link to the outside, as fast as it can, gets nothing out and nothing written there.
func TestSwappedDirectoryNeverLeadsOut(t *testing.T) {
	f, ws := workspace(t)
	outside := filepath.Join(filepath.Dir(ws), "outside")
	require.NoError(t, os.Mkdir(filepath.Join(ws, "d"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(ws, "d", "f"), []byte("inside"), 0o644))
	require.NoError(t, os.Symlink("../outside", filepath.Join(ws, "l")))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	halt := sync.OnceFunc(func() { close(stop); wg.Wait() })
	defer halt()
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				// Exchanges the two in one step.
				unix.Renameat2(unix.AT_FDCWD, filepath.Join(ws, "d"), unix.AT_FDCWD, filepath.Join(ws, "l"), unix.RENAME_EXCHANGE)
			}
		}
	})
	var reads, refused int
	for i := range 5000 {
		got, err := read(f, "d/f")
		if err != nil {
			refused++
			require.NotEmpty(t, reason(t, err))
		} else {
			reads++
			require.NotEqual(t, secret, got)
		}
		_ = write(f, "d/f", "inside")
		_ = write(f, "d/new"+strconv.Itoa(i%10), "x")
		if reply, err := f.List(&toolboxv1.ListFiles{Recursive: true}); err == nil {
			for _, e := range reply.Entries {
				require.NotEqual(t, uint64(len(secret)), e.Size)
			}
		}
	}
	halt()
	require.NotZero(t, reads)
	require.NotZero(t, refused, "the race was never hit")
	left, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Len(t, left, 1)
	kept, err := os.ReadFile(filepath.Join(outside, "f"))
	require.NoError(t, err)
	require.Equal(t, secret, string(kept))
}

// What is no regular file is refused at once: opening a FIFO must not wait for its other end.
func TestOnlyRegularFiles(t *testing.T) {
	f, ws := workspace(t)
	require.NoError(t, unix.Mkfifo(filepath.Join(ws, "fifo"), 0o666))
	l, err := net.Listen("unix", filepath.Join(ws, "socket"))
	require.NoError(t, err)
	defer l.Close()
	if err := unix.Mknod(filepath.Join(ws, "device"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); err != nil {
		require.ErrorIs(t, err, unix.EPERM)
		require.NoError(t, unix.Mkfifo(filepath.Join(ws, "device"), 0o666))
	}
	require.NoError(t, os.Mkdir(filepath.Join(ws, "d"), 0o755))
	for _, name := range []string{"fifo", "socket", "device", "d"} {
		require.NoError(t, os.Symlink(name, filepath.Join(ws, "to-"+name)))
		for _, path := range []string{name, "to-" + name} {
			require.Equal(t, "path_not_file", reason(t, soon(t, func() error { _, err := read(f, path); return err })), path)
			require.Equal(t, "path_not_file", reason(t, soon(t, func() error { return write(f, path, "x") })), path)
			require.Equal(t, "path_not_file", reason(t, soon(t, func() error {
				_, err := f.Write(&toolboxv1.WriteFile{Path: path, Data: []byte("x"), Append: true, Last: true})
				return err
			})), path)
			if name == "d" {
				continue
			}
			require.Equal(t, "path_not_directory", reason(t, soon(t, func() error {
				_, err := f.List(&toolboxv1.ListFiles{Path: path})
				return err
			})), path)
			require.Equal(t, "path_not_directory", reason(t, soon(t, func() error { return write(f, path+"/x", "x") })), path)
		}
	}
}

// soon is what call returns; a call that blocks fails the test.
func soon(t *testing.T, call func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		return err
	case <-time.After(5 * time.Second):
		require.FailNow(t, "blocked")
		return nil
	}
}

func TestReasons(t *testing.T) {
	f, _ := workspace(t, func(o *Options) { o.MaxFile = 100 })
	require.NoError(t, write(f, "file", "x"))
	_, err := read(f, "none")
	require.Equal(t, "path_not_found", reason(t, err))
	_, err = read(f, "file/below")
	require.Equal(t, "path_not_directory", reason(t, err))
	_, err = f.List(&toolboxv1.ListFiles{Path: "file"})
	require.Equal(t, "path_not_directory", reason(t, err))
	_, err = f.List(&toolboxv1.ListFiles{Path: "none"})
	require.Equal(t, "path_not_found", reason(t, err))
	require.Equal(t, "too_large", reason(t, write(f, "big", strings.Repeat("x", 101))))
	require.NoError(t, write(f, "most", strings.Repeat("x", 100)))
	_, err = f.Write(&toolboxv1.WriteFile{Path: "most", Data: []byte("x"), Append: true, Last: true})
	require.Equal(t, "too_large", reason(t, err))
	for _, path := range []string{strings.Repeat("n", 300), strings.Repeat("p/", 3000), "nul\x00"} {
		require.Equal(t, "validation", reason(t, write(f, path, "x")))
	}
	require.Equal(t, "path_not_file", reason(t, write(f, ".", "x")))
	require.Equal(t, "path_not_file", reason(t, write(f, "/workspace", "x")))
	_, err = f.Read(&toolboxv1.ReadFile{Path: "file", Offset: -1})
	require.Equal(t, "validation", reason(t, err))
}

func TestStrangeNames(t *testing.T) {
	f, ws := workspace(t)
	names := []string{"-rf", "a b", "line\nbreak", `qu"o'te`, "$(touch x)", "ünï", "..."}
	for _, name := range names {
		require.NoError(t, write(f, name, name))
		got, err := read(f, "/workspace/"+name)
		require.NoError(t, err)
		require.Equal(t, name, got)
	}
	slices.Sort(names)
	require.Equal(t, names, list(t, f, &toolboxv1.ListFiles{}))
	// Bytes that are no text must not break the answer.
	require.NoError(t, os.WriteFile(filepath.Join(ws, "\xff\xfe"), nil, 0o644))
	require.Contains(t, list(t, f, &toolboxv1.ListFiles{}), "\uFFFD")
}

func TestLargeFileInParts(t *testing.T) {
	f, ws := workspace(t, func(o *Options) { o.Sync = true })
	const size, part = 16 << 20, 512 << 10
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{1}).Read(data)
	require.NoError(t, write(f, "d/file", "old"))
	for offset := 0; offset < size; offset += part {
		r := &toolboxv1.WriteFile{Path: "d/file", UploadId: "u1", Offset: int64(offset), Data: data[offset : offset+part], Last: offset+part == size}
		reply, err := f.Write(r)
		require.NoError(t, err)
		require.EqualValues(t, offset+part, reply.BytesWritten)
		if !r.Last {
			old, err := os.ReadFile(filepath.Join(ws, "d", "file"))
			require.NoError(t, err)
			require.Equal(t, "old", string(old), "changed before the last part")
			require.Equal(t, []string{"d", "d/file"}, list(t, f, &toolboxv1.ListFiles{Recursive: true}))
		}
		// Sent again, as after a lost answer.
		again, err := f.Write(r)
		require.NoError(t, err)
		require.Equal(t, reply.BytesWritten, again.BytesWritten)
	}
	var got []byte
	for eof := false; !eof; {
		reply, err := f.Read(&toolboxv1.ReadFile{Path: "d/file", Offset: int64(len(got)), MaxBytes: 1 << 30})
		require.NoError(t, err)
		require.EqualValues(t, size, reply.TotalSize)
		require.LessOrEqual(t, len(reply.Data), MaxPart)
		got, eof = append(got, reply.Data...), reply.Eof
	}
	require.True(t, bytes.Equal(data, got))
	require.Empty(t, temps(t, ws))
}

// temps are the names of temporary files anywhere in the workspace.
func temps(t *testing.T, ws string) (names []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(ws, func(p string, _ os.DirEntry, err error) error {
		if Hidden(filepath.Base(p)) {
			names = append(names, p)
		}
		return err
	}))
	return names
}

func TestAppendIsDoneOnce(t *testing.T) {
	f, _ := workspace(t)
	r := &toolboxv1.WriteFile{Path: "log", UploadId: "u", Data: []byte("line\n"), Append: true, Last: true}
	for range 3 {
		reply, err := f.Write(r)
		require.NoError(t, err)
		require.EqualValues(t, 5, reply.BytesWritten)
	}
	r.UploadId = "u2"
	_, err := f.Write(r)
	require.NoError(t, err)
	got, err := read(f, "log")
	require.NoError(t, err)
	require.Equal(t, "line\nline\n", got)
}

func TestPartsOutOfOrder(t *testing.T) {
	f, _ := workspace(t)
	part := func(id string, offset int64, last bool) error {
		_, err := f.Write(&toolboxv1.WriteFile{Path: "f", UploadId: id, Offset: offset, Data: []byte("abc"), Last: last})
		return err
	}
	require.Equal(t, "illegal_state", reason(t, part("a", 3, false)))
	require.NoError(t, part("a", 0, false))
	require.Equal(t, "validation", reason(t, part("a", 4, true)))
	require.NoError(t, part("a", 3, true))
	require.Equal(t, "validation", reason(t, part("", 3, true)))
	got, err := read(f, "f")
	require.NoError(t, err)
	require.Equal(t, "abcabc", got)
}

func TestUnfinishedUploadsAreBoundedAndRemoved(t *testing.T) {
	now := time.Now()
	f, ws := workspace(t, func(o *Options) { o.Now = func() time.Time { return now } })
	begin := func(id string) error {
		_, err := f.Write(&toolboxv1.WriteFile{Path: "f", UploadId: id, Data: []byte("x")})
		return err
	}
	for i := range MaxUploads {
		require.NoError(t, begin(strconv.Itoa(i)))
	}
	require.Equal(t, "quota", reason(t, begin("more")))
	require.Len(t, temps(t, ws), MaxUploads)
	require.NoError(t, write(f, "other", "still works"))
	now = now.Add(UploadIdle + time.Second)
	require.NoError(t, begin("more"))
	require.Len(t, temps(t, ws), 1)

	// A toolbox that was killed leaves its temporary file; the next one removes it, once it is old.
	require.NoError(t, os.Mkdir(filepath.Join(ws, "d"), 0o755))
	left := filepath.Join(ws, "d", tempPrefix+"0123")
	require.NoError(t, os.WriteFile(left, []byte("x"), 0o600))
	require.NoError(t, f.Clean(t.Context()))
	require.FileExists(t, left)
	now = now.Add(2 * TempAge)
	require.NoError(t, f.Clean(t.Context()))
	require.NoFileExists(t, left)
	require.Empty(t, temps(t, ws))
}

func TestModeAndOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		require.FailNow(t, "needs root: files change their owner")
	}
	f, ws := workspace(t, func(o *Options) { o.Own, o.UID, o.GID = true, 70_001, 70_002 })
	check := func(path string, mode os.FileMode) {
		t.Helper()
		info, err := os.Stat(filepath.Join(ws, path))
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm(), path)
		st := info.Sys().(*syscall.Stat_t)
		require.Equal(t, []uint32{70_001, 70_002}, []uint32{st.Uid, st.Gid}, path)
	}
	require.NoError(t, write(f, "a/b/f", "x"))
	check("a", 0o755)
	check("a/b", 0o755)
	check("a/b/f", 0o644)
	_, err := f.Write(&toolboxv1.WriteFile{Path: "a/b/f", Data: []byte("y"), Last: true, Mode: 0o4750})
	require.NoError(t, err)
	check("a/b/f", 0o750)
	require.NoError(t, write(f, "a/b/f", "z"))
	check("a/b/f", 0o750)
	require.NoError(t, os.Symlink("new", filepath.Join(ws, "link")))
	require.NoError(t, write(f, "link", "x"))
	check("new", 0o644)
}

func TestFullDiskIsSaidAndLeavesNothing(t *testing.T) {
	base := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", base, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(base, unix.MNT_DETACH)) })
	f, err := Open(Options{Dir: base, MountPath: "/workspace"})
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, write(f, "log", strings.Repeat("x", 100_000)))
	part := func(offset int64) error {
		_, err := f.Write(&toolboxv1.WriteFile{Path: "big", UploadId: "u", Offset: offset, Data: make([]byte, 600_000)})
		return err
	}
	require.NoError(t, part(0))
	require.Equal(t, "disk_full", reason(t, part(600_000)))
	require.Empty(t, temps(t, base))
	// Collected, and then no room to append it: the file is as it was.
	_, err = f.Write(&toolboxv1.WriteFile{Path: "log", Data: make([]byte, 600_000), Append: true, Last: true})
	require.Equal(t, "disk_full", reason(t, err))
	info, err := os.Stat(filepath.Join(base, "log"))
	require.NoError(t, err)
	require.EqualValues(t, 100_000, info.Size())
	require.Equal(t, []string{"log"}, list(t, f, &toolboxv1.ListFiles{}))
}

func TestHardLinksAndSparseFiles(t *testing.T) {
	f, ws := workspace(t)
	require.NoError(t, write(f, "one", "x"))
	require.NoError(t, os.Link(filepath.Join(ws, "one"), filepath.Join(ws, "two")))
	_, err := f.Write(&toolboxv1.WriteFile{Path: "two", Data: []byte("y"), Append: true, Last: true})
	require.NoError(t, err)
	got, err := read(f, "one")
	require.NoError(t, err)
	require.Equal(t, "xy", got)

	require.NoError(t, os.Truncate(filepath.Join(ws, "one"), 1<<40))
	reply, err := f.Read(&toolboxv1.ReadFile{Path: "one", Offset: 1<<40 - 3, MaxBytes: 100})
	require.NoError(t, err)
	require.EqualValues(t, 1<<40, reply.TotalSize)
	require.Len(t, reply.Data, 3)
	require.True(t, reply.Eof)
	reply, err = f.Read(&toolboxv1.ReadFile{Path: "one", Offset: 1 << 50})
	require.NoError(t, err)
	require.Empty(t, reply.Data)
	require.True(t, reply.Eof)
}

func TestListIsBoundedAndStable(t *testing.T) {
	f, ws := workspace(t)
	require.NoError(t, os.Mkdir(filepath.Join(ws, "many"), 0o755))
	for i := range 3000 {
		require.NoError(t, os.WriteFile(filepath.Join(ws, "many", fmt.Sprintf("%05d", i)), nil, 0o644))
	}
	deep := strings.Repeat("d/", 400)
	require.NoError(t, os.MkdirAll(filepath.Join(ws, deep), 0o755))
	require.NoError(t, os.Symlink(".", filepath.Join(ws, "loop")))

	reply, err := f.List(&toolboxv1.ListFiles{Path: "many"})
	require.NoError(t, err)
	require.Len(t, reply.Entries, DefaultEntries)
	require.True(t, reply.Truncated)
	require.Equal(t, "many/00000", reply.Entries[0].Path)
	require.Equal(t, "many/00999", reply.Entries[999].Path)
	reply, err = f.List(&toolboxv1.ListFiles{Path: "/workspace/many", MaxEntries: 3000})
	require.NoError(t, err)
	require.Len(t, reply.Entries, 3000)
	require.False(t, reply.Truncated)
	top := list(t, f, &toolboxv1.ListFiles{})
	require.Equal(t, []string{"d", "loop", "many"}, top)
	all := list(t, f, &toolboxv1.ListFiles{Recursive: true, MaxEntries: 5000})
	require.Len(t, all, 3000+400+2)
	require.Equal(t, all, list(t, f, &toolboxv1.ListFiles{Recursive: true, MaxEntries: 5000}))

	// Long names and link targets fill a message before the count does.
	for i := range 1000 {
		require.NoError(t, os.Symlink(strings.Repeat("t", 3000), filepath.Join(ws, "d", fmt.Sprint(i))))
	}
	reply, err = f.List(&toolboxv1.ListFiles{Path: "d", MaxEntries: MaxEntries})
	require.NoError(t, err)
	require.True(t, reply.Truncated)
	var sent bytes.Buffer
	require.NoError(t, wire.Write(&sent, &toolboxv1.Response{Answer: &toolboxv1.Response_ListFiles{ListFiles: reply}}))
}
