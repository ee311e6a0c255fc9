package workspace

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
)

func open(t *testing.T, o Options) *Store {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	s, err := Open(o)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func debugfs(t *testing.T, path, request string) string {
	t.Helper()
	program, err := Program("debugfs")
	require.NoError(t, err)
	out, err := exec.Command(program, "-R", request, path).Output()
	require.NoError(t, err)
	return string(out)
}

func TestCreateMakesAnEmptySparseFileSystem(t *testing.T) {
	s := open(t, Options{UID: 101000, GID: 101001})
	for _, size := range []uint64{MinBytes, 100<<20 + 1, DefaultBytes} {
		path, err := s.Create(t.Context(), ids.New(), size)
		require.NoError(t, err)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, (size+4095)/4096*4096, uint64(info.Size()))
		require.Less(t, info.Sys().(*syscall.Stat_t).Blocks*512, int64(8<<20), "sparse")
		require.NotContains(t, debugfs(t, path, "ls -l"), "lost+found")
		root := debugfs(t, path, "stat <2>")
		require.Contains(t, root, "101000")
		require.Contains(t, root, "101001")
		fsck, err := Program("e2fsck")
		require.NoError(t, err)
		out, err := exec.Command(fsck, "-fn", path).CombinedOutput()
		require.NoError(t, err, string(out))
	}
}

func TestCreateIsRepeatable(t *testing.T) {
	both(t, createIsRepeatable)
}

// both runs a test with images and with directories.
func both(t *testing.T, test func(*testing.T, Options)) {
	for name, o := range map[string]Options{"images": {Pool: 4}, "directories": {Directories: true}} {
		t.Run(name, func(t *testing.T) { test(t, o) })
	}
}

func createIsRepeatable(t *testing.T, o Options) {
	s := open(t, o)
	id := ids.New()
	first, err := s.Create(t.Context(), id, 0)
	require.NoError(t, err)
	before, err := os.Stat(first)
	require.NoError(t, err)

	again, err := s.Create(t.Context(), id, DefaultBytes)
	require.NoError(t, err)
	after, err := os.Stat(again)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "content is never replaced")
	require.Equal(t, s.Path(id), first)

	_, err = s.Create(t.Context(), id, MinBytes)
	require.Equal(t, fault.Conflict, fault.CodeOf(err))
	o.Dir = s.o.Dir
	_, err = open(t, o).Create(t.Context(), id, MinBytes)
	require.Equal(t, fault.Conflict, fault.CodeOf(err), "another process knows its size")

	list, err := s.List()
	require.NoError(t, err)
	require.Equal(t, []string{id}, list)
	require.True(t, s.Exists(id))
	require.NoError(t, s.Delete(id))
	require.NoError(t, s.Delete(id))
	require.False(t, s.Exists(id))
}

func TestConcurrentCreatesOfOneWorkspaceMakeOne(t *testing.T) {
	both(t, concurrentCreates)
}

func concurrentCreates(t *testing.T, o Options) {
	s := open(t, o)
	id := ids.New()
	errs := make([]error, 8)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { _, errs[i] = s.Create(t.Context(), id, 0) })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	list, err := s.List()
	require.NoError(t, err)
	require.Len(t, list, 1)
}

func TestPoolMakesACreateARename(t *testing.T) {
	s := open(t, Options{Pool: 3})
	require.Eventually(t, func() bool { return s.Ready() == 3 }, 10*time.Second, 5*time.Millisecond)
	ready, err := filepath.Glob(filepath.Join(s.o.Dir, poolDir, "*"))
	require.NoError(t, err)
	var held []os.FileInfo
	for _, path := range ready {
		info, err := os.Stat(path)
		require.NoError(t, err)
		held = append(held, info)
	}
	path, err := s.Create(t.Context(), ids.New(), 0)
	require.NoError(t, err)
	made, err := os.Stat(path)
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(held, func(i os.FileInfo) bool { return os.SameFile(i, made) }), "one that lay ready")
	require.True(t, strings.HasPrefix(debugfs(t, path, "stat <2>"), "Inode: 2"))
	require.Eventually(t, func() bool { return s.Ready() == 3 }, 10*time.Second, 5*time.Millisecond)

	s.Close()
	other := open(t, Options{Dir: s.o.Dir})
	left, err := filepath.Glob(filepath.Join(s.o.Dir, poolDir, "*"))
	require.NoError(t, err)
	require.Empty(t, left, "an earlier pool is cleared")
	list, err := other.List()
	require.NoError(t, err)
	require.Len(t, list, 1)
}

func TestBounds(t *testing.T) { both(t, bounds) }

func bounds(t *testing.T, o Options) {
	s := open(t, o)
	for _, size := range []uint64{1, MinBytes - 1, MaxBytes + 1, math.MaxUint64} {
		_, err := s.Create(t.Context(), ids.New(), size)
		require.Equal(t, fault.InvalidArgument, fault.CodeOf(err))
	}
	for _, id := range []string{"", ".", "../x", "A0000000-0000-0000-0000-000000000000"} {
		_, err := s.Create(t.Context(), id, 0)
		require.Equal(t, fault.InvalidArgument, fault.CodeOf(err))
		require.Error(t, s.Delete(id))
	}
	o.ReserveBytes = math.MaxUint64
	full := open(t, o)
	_, err := full.Create(t.Context(), ids.New(), 0)
	require.True(t, fault.Is(err, fault.ReasonDiskFull))
	list, err := full.List()
	require.NoError(t, err)
	require.Empty(t, list)
}
