package workspace

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
)

// nobody is a user without any right: what root may do would hide what a removal has to do.
const nobody = 65534

// userDir is set in the process of a common user only.
const userDir = "SANDTRAIL_TEST_USER_DIR"

// asUser runs a test of this program as a user without any right, in a directory of its own; this process does where it is one.
func asUser(t *testing.T, name string) {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+name+"$", "-test.v")
	cmd.Env = append(os.Environ(), userDir+"="+dir, "TMPDIR="+dir)
	if os.Geteuid() == 0 {
		program := filepath.Join(dir, "test")
		out, err := exec.CommandContext(t.Context(), "cp", os.Args[0], program).CombinedOutput()
		require.NoError(t, err, "%s", out)
		for at := dir; at != os.TempDir() && at != "/"; at = filepath.Dir(at) {
			require.NoError(t, os.Chmod(at, 0o755)) //nolint:gosec // the user must get there
		}
		require.NoError(t, os.Chown(dir, nobody, nobody))
		cmd.Path, cmd.Dir = program, dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err)
	require.Contains(t, string(out), "--- PASS: "+name)
}

func TestHostileDirectoryIsRemoved(t *testing.T) { asUser(t, "TestHelperHostileDirectory") }

// depth is more than descriptors, and as a path longer than a path may be.
const depth = 1500

// nest makes a directory in each directory, and takes every permission from each.
func nest(t *testing.T, dir string) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	require.NoError(t, err)
	for range depth {
		require.NoError(t, unix.Mkdirat(at, "deeper", 0o700))
		below, err := unix.Openat(at, "deeper", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		require.NoError(t, err)
		file, err := unix.Openat(below, "closed", unix.O_CREAT|unix.O_WRONLY, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Close(file))
		require.NoError(t, unix.Fchmod(at, 0))
		require.NoError(t, unix.Close(at))
		at = below
	}
	require.NoError(t, unix.Fchmod(at, 0))
	require.NoError(t, unix.Close(at))
}

// TestHelperHostileDirectory is run by TestHostileDirectoryIsRemoved.
func TestHelperHostileDirectory(t *testing.T) {
	dir := os.Getenv(userDir)
	if dir == "" {
		return
	}
	require.NotZero(t, os.Geteuid())
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64}))
	outside := filepath.Join(dir, "outside")
	canary := filepath.Join(outside, "canary")
	require.NoError(t, os.Mkdir(outside, 0o700))
	require.NoError(t, os.WriteFile(canary, []byte("kept"), 0o400))
	s := open(t, Options{Dir: filepath.Join(dir, "workspaces"), Directories: true})
	id, other := ids.New(), ids.New()
	path, err := s.Create(t.Context(), id, MinBytes)
	require.NoError(t, err)
	_, err = s.Create(t.Context(), other, MinBytes)
	require.NoError(t, err)

	wide := filepath.Join(path, "wide")
	require.NoError(t, os.Mkdir(wide, 0o700))
	for i := range namesAtOnce + 100 {
		require.NoError(t, os.Mkdir(filepath.Join(wide, fmt.Sprint(i)), 0))
	}
	for i := range 100 {
		below := filepath.Join(wide, "full"+fmt.Sprint(i))
		require.NoError(t, os.Mkdir(below, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(below, "\n\xff"), nil, 0))
		require.NoError(t, os.Chmod(below, 0o500))
	}
	for _, at := range []string{path, wide} {
		require.NoError(t, os.Symlink(outside, filepath.Join(at, "directory")))
		require.NoError(t, os.Symlink(canary, filepath.Join(at, "file")))
		require.NoError(t, os.Symlink(filepath.Dir(path), filepath.Join(at, "up")))
		require.NoError(t, os.Link(canary, filepath.Join(at, "hard")))
		require.NoError(t, unix.Mkfifo(filepath.Join(at, "fifo"), 0))
	}
	require.NoError(t, os.Chmod(wide, 0))
	nest(t, path)

	require.NoError(t, s.Delete(id))
	require.False(t, s.Exists(id))
	left, err := os.ReadDir(filepath.Join(s.o.Dir, poolDir))
	require.NoError(t, err)
	require.Empty(t, left)
	data, err := os.ReadFile(canary)
	require.NoError(t, err)
	require.Equal(t, "kept", string(data))
	info, err := os.Lstat(canary)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o400), info.Mode(), "what a link names is not touched")
	list, err := s.List()
	require.NoError(t, err)
	require.Equal(t, []string{other}, list)
}

// TestInterruptedRemoval: what a removal or a create left half done goes when the store is opened.
func TestInterruptedRemoval(t *testing.T) {
	s := open(t, Options{Directories: true})
	id := ids.New()
	path, err := s.Create(t.Context(), id, 0)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(path, "f"), nil, 0o600))
	trash := filepath.Join(s.o.Dir, poolDir, "x.old")
	require.NoError(t, os.Rename(s.place(id), trash))
	require.NoError(t, os.Mkdir(filepath.Join(s.o.Dir, poolDir, "y.new"), 0o700))
	open(t, Options{Dir: s.o.Dir, Directories: true})
	left, err := os.ReadDir(filepath.Dir(trash))
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestTheOtherKind: a worker that begins or ceases to run as root finds and removes the workspaces of before, and gives none of
// them to a sandbox, which could not use it.
func TestTheOtherKind(t *testing.T) {
	for name, first := range map[string]Options{"images": {}, "directories": {Directories: true}} {
		t.Run(name, func(t *testing.T) {
			before := open(t, first)
			id := ids.New()
			_, err := before.Create(t.Context(), id, 0)
			require.NoError(t, err)
			after := open(t, Options{Dir: before.o.Dir, Directories: !first.Directories})
			require.True(t, after.Exists(id))
			list, err := after.List()
			require.NoError(t, err)
			require.Equal(t, []string{id}, list)
			_, err = after.Create(t.Context(), id, 0)
			require.Equal(t, fault.FailedPrecondition, fault.CodeOf(err))
			require.ErrorContains(t, err, "root")
			require.NoError(t, after.Delete(id))
			require.False(t, before.Exists(id))
		})
	}
}
