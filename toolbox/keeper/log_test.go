package keeper

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	require.NoError(t, err)
	defer f.Close()
	l := NewLog(f)
	for i := range 5000 {
		n, err := fmt.Fprintf(l, "%0999d\n", i)
		require.NoError(t, err)
		require.Equal(t, 1000, n)
	}
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.LessOrEqual(t, len(b), maxLog)
	require.True(t, bytes.HasPrefix(b, []byte(`{"level":"WARN"`)))
	require.True(t, bytes.HasSuffix(b, []byte("4999\n")))

	n, err := NewLog(f).Write(make([]byte, 3*maxLog))
	require.NoError(t, err)
	require.Equal(t, 3*maxLog, n)
	info, err := f.Stat()
	require.NoError(t, err)
	require.LessOrEqual(t, info.Size(), int64(maxLog))
}
