package e2e

import (
	"crypto/sha256"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// resident is how much memory a process has, in bytes: of its own, without what it shares with files. 0: that cannot be read.
func resident(pid int) int64 {
	data, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	_, rest, _ := strings.Cut(string(data), "RssAnon:")
	kib, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	n, _ := strconv.ParseInt(kib, 10, 64)
	return n << 10
}

func digestOf(t *testing.T, name string) [32]byte {
	t.Helper()
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, f)
	require.NoError(t, err)
	return [32]byte(sum.Sum(nil))
}

// 256 MiB and a directory go into a real sandbox and come back as they were, and the server's memory does not grow with them.
func TestLargeFilesAndDirectoriesThereAndBack(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs a sandbox")
	}
	s := stack.Up(t)
	var up struct{ PID int }
	data, err := os.ReadFile(filepath.Join(s.State, "up.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &up))
	local := t.TempDir()
	does := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(stack.Bin(t), "sandtrail"), args...)
		cmd.Dir = local
		cmd.Env = append(os.Environ(), "SANDTRAIL_API_URL=http://"+s.HTTP, "SANDTRAIL_CONFIG="+filepath.Join(local, "none"))
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%v: %s", args, out)
		return string(out)
	}
	does("create", "box")

	const size = 256 << 20
	big, then := filepath.Join(local, "big"), time.Unix(981_173_106, 789)
	f, err := os.Create(big)
	require.NoError(t, err)
	_, err = io.CopyN(f, rand.NewChaCha8([32]byte{1}), size)
	require.NoError(t, err)
	require.NoError(t, f.Chmod(0o750))
	require.NoError(t, f.Close())
	require.NoError(t, os.Chtimes(big, then, then))
	does("fs", "upload", "box", "big", "warm/")
	before, most := resident(up.PID), int64(0)
	stop, looked := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(looked)
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			select {
			case <-tick.C:
				most = max(most, resident(up.PID))
			case <-stop:
				tick.Stop()
				return
			}
		}
	}()
	does("fs", "upload", "box", "big", "big")
	does("fs", "download", "box", "big", "back")
	close(stop)
	<-looked
	t.Logf("%d MiB, at most %d MiB more", before>>20, (most-before)>>20)
	require.NotZero(t, most)
	require.Less(t, most-before, int64(size/2))
	require.Equal(t, digestOf(t, big), digestOf(t, filepath.Join(local, "back")))
	info, err := os.Stat(filepath.Join(local, "back"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o750), info.Mode())
	require.True(t, info.ModTime().Equal(then), info.ModTime())
	require.Equal(t, "750 268435456\n", does("execute", "box", "stat -c '%a %s' big"), "as programs see it")

	tree := filepath.Join(local, "tree")
	require.NoError(t, os.MkdirAll(filepath.Join(tree, "bin"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(tree, "bin", "hello"), []byte("#!/bin/sh\necho hello\n"), 0o755)) //nolint:gosec // it is run
	require.NoError(t, os.Symlink("bin/hello", filepath.Join(tree, "run")))
	does("fs", "upload", "box", "tree", "t")
	const more = `./t/run && echo more > t/made && chmod 640 t/made && ln -s /etc/passwd t/out && touch "$(printf 't/\377')"`
	require.Equal(t, "hello\n", does("execute", "box", more))
	said := does("fs", "download", "box", "t", "got")
	require.Contains(t, said, "out is left out")
	require.Contains(t, said, "1 entries are left out")
	out, err := exec.CommandContext(t.Context(), filepath.Join(local, "got", "run")).Output()
	require.NoError(t, err)
	require.Equal(t, "hello\n", string(out))
	info, err = os.Stat(filepath.Join(local, "got", "made"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode())
}
