package natsserver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// put writes a file that was last changed at a time.
func put(t *testing.T, path, content string, changed time.Time) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	require.NoError(t, os.Chtimes(path, changed, changed))
}

func TestAFlushTakesWhatWasWrittenSinceTheLast(t *testing.T) {
	dir := t.TempDir()
	f := &flusher{dir: dir, flushed: map[string]stamp{}}
	flushes := func(n int, what string) {
		t.Helper()
		done, err := f.flush()
		require.NoError(t, err, what)
		require.Equal(t, n, done, what)
	}
	old := time.Now().Add(-time.Hour)
	first, second := filepath.Join(dir, "streams", "A", "msgs", "1.blk"), filepath.Join(dir, "streams", "B", "msgs", "1.blk")
	flushes(0, "nothing is there")
	put(t, first, "one", old)
	put(t, second, "one", old)
	put(t, filepath.Join(dir, "streams", "A", "msgs", "index.db"), "no messages", old)
	flushes(2, "both are new")
	flushes(0, "nothing was written")
	put(t, first, "one, two", old)
	flushes(1, "one grew")
	put(t, second, "two", old.Add(time.Minute))
	flushes(1, "one was changed in place")
	require.NoError(t, os.Remove(second))
	flushes(0, "one is gone")
	put(t, second, "two", old.Add(time.Minute))
	flushes(1, "it is there again")

	put(t, first, "this very moment", time.Now().Add(time.Hour))
	flushes(1, "it was written to just now")
	flushes(1, "and may have been again since, at the same time by its clock")
}

func TestAServerWhoseFlushesFailSaysSo(t *testing.T) {
	s, err := Start(Options{Dir: t.TempDir(), SyncInterval: 10 * time.Millisecond})
	require.NoError(t, err)
	defer s.Shutdown()
	require.NoError(t, s.broken())
	err = os.ErrPermission
	s.flusher.failed.Store(&err)
	require.ErrorIs(t, <-s.Failed(), os.ErrPermission)
}

func TestOnlyOneFlushes(t *testing.T) {
	for _, c := range []struct {
		o       Options
		flusher bool
		server  time.Duration
	}{
		{Options{SyncInterval: time.Second}, true, serverSyncs},
		{Options{SyncInterval: time.Hour}, false, time.Hour},
		{Options{SyncAlways: true, SyncInterval: time.Second}, false, time.Second},
		{Options{}, false, 0},
	} {
		so, err := c.o.server()
		require.NoError(t, err)
		require.Equal(t, c.flusher, c.o.flushed(), "%+v", c.o)
		require.Equal(t, c.server, so.SyncInterval, "%+v", c.o)
	}
}
