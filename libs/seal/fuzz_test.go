package seal_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/seal"
)

// FuzzOpen: what nobody sealed does not open, whatever it looks like; what was sealed opens as it was, and only for whom it was.
func FuzzOpen(f *testing.F) {
	key, err := seal.New(bytes.Repeat([]byte{7}, 32))
	require.NoError(f, err)
	whole, err := key.Seal([]byte("secret"), []byte("sandbox"))
	require.NoError(f, err)
	f.Add(whole[1:], []byte("sandbox"))
	f.Add([]byte{}, []byte{})
	f.Add([]byte{1}, []byte("sandbox"))
	f.Add(bytes.Repeat([]byte{1}, seal.Overhead), []byte{})
	f.Fuzz(func(t *testing.T, data, associated []byte) {
		if plain, err := key.Open(data, associated); err == nil {
			require.Empty(t, data)
			require.Empty(t, plain)
		} else {
			require.ErrorIs(t, err, seal.ErrOpen)
		}
		sealed, err := key.Seal(data, associated)
		require.NoError(t, err)
		plain, err := key.Open(sealed, associated)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, plain))
		if len(data) == 0 {
			return
		}
		require.Len(t, sealed, len(data)+seal.Overhead)
		_, err = key.Open(sealed, append([]byte("x"), associated...))
		require.ErrorIs(t, err, seal.ErrOpen)
		sealed[len(data)%len(sealed)] ^= 1
		_, err = key.Open(sealed, associated)
		require.ErrorIs(t, err, seal.ErrOpen)
	})
}

// FuzzKeyFile: a file is a key of 64 hex digits or an error that does not quote it, and it is left as it was.
func FuzzKeyFile(f *testing.F) {
	for _, s := range []string{"", "x", strings.Repeat("ab", 32), strings.Repeat("AB", 32) + "\n", strings.Repeat("ab", 32) + "\r\n", strings.Repeat("ab", 33), strings.Repeat("zz", 32)} {
		f.Add([]byte(s))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := os.CreateTemp(dir, "key")
		require.NoError(t, err)
		defer func() { _ = os.Remove(file.Name()) }()
		_, err = file.Write(data)
		require.NoError(t, err)
		require.NoError(t, file.Close())
		key, err := seal.Load(file.Name())
		if err == nil {
			require.GreaterOrEqual(t, len(data), 64)
			sealed, err := key.Seal([]byte("x"), nil)
			require.NoError(t, err)
			_, err = key.Open(sealed, nil)
			require.NoError(t, err)
		} else if len(data) >= 16 {
			require.NotContains(t, strings.ReplaceAll(err.Error(), file.Name(), filepath.Base("key")), string(data[:16]))
		}
		now, err := os.ReadFile(file.Name())
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, now))
	})
}
