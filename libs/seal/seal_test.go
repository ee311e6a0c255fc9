package seal_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/seal"
)

func key(t *testing.T, b byte) *seal.Key {
	t.Helper()
	k, err := seal.New(bytes.Repeat([]byte{b}, 32))
	require.NoError(t, err)
	return k
}

func TestSealedOpensOnlyAsItWasSealed(t *testing.T) {
	k := key(t, 1)
	plain, associated := []byte("PASSWORD=hunter2"), []byte("sandbox-1")
	sealed, err := k.Seal(plain, associated)
	require.NoError(t, err)
	require.Len(t, sealed, len(plain)+seal.Overhead)
	require.NotContains(t, string(sealed), "hunter2")
	opened, err := k.Open(sealed, associated)
	require.NoError(t, err)
	require.Equal(t, plain, opened)

	again, err := k.Seal(plain, associated)
	require.NoError(t, err)
	require.NotEqual(t, sealed, again, "equal secrets must not look equal")

	_, err = k.Open(sealed, []byte("sandbox-2"))
	require.ErrorIs(t, err, seal.ErrOpen)
	_, err = key(t, 2).Open(sealed, associated)
	require.ErrorIs(t, err, seal.ErrOpen)
	for i := range sealed {
		broken := bytes.Clone(sealed)
		broken[i] ^= 1
		_, err = k.Open(broken, associated)
		require.ErrorIs(t, err, seal.ErrOpen, "byte %d was changed", i)
		if i > 0 {
			_, err = k.Open(sealed[:i], associated)
			require.ErrorIs(t, err, seal.ErrOpen, "only %d bytes", i)
		}
	}
}

func TestEmptyStaysEmpty(t *testing.T) {
	k := key(t, 1)
	sealed, err := k.Seal(nil, []byte("a"))
	require.NoError(t, err)
	require.Empty(t, sealed)
	plain, err := k.Open(sealed, []byte("b"))
	require.NoError(t, err)
	require.Empty(t, plain)
}

func TestLoadMakesOneKeyForAll(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys", "seal")
	const n = 16
	keys, errs := make(chan *seal.Key, n), make(chan error, n)
	for range n {
		go func() {
			k, err := seal.Load(path)
			keys <- k
			errs <- err
		}()
	}
	for range n {
		require.NoError(t, <-errs)
	}
	first := <-keys
	sealed, err := first.Seal([]byte("x"), nil)
	require.NoError(t, err)
	for range n - 1 {
		_, err := (<-keys).Open(sealed, nil)
		require.NoError(t, err)
	}
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1, "no half-made key stays behind")
}

func TestLoadRefusesWhatIsNoKey(t *testing.T) {
	good := hex.EncodeToString(bytes.Repeat([]byte{7}, 32))
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
	}{
		"readable by others": {good, 0o644},
		"empty":              {"", 0o600},
		"too short":          {good[:62], 0o600},
		"too long":           {good + "00", 0o600},
		"not hex":            {"zz" + good[2:], 0o600},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "seal")
			require.NoError(t, os.WriteFile(path, []byte(c.text), 0o600))
			require.NoError(t, os.Chmod(path, c.mode))
			_, err := seal.Load(path)
			require.Error(t, err)
			require.NotContains(t, err.Error(), good[2:62])
			kept, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, c.text, string(kept), "a file that is there is never overwritten")
		})
	}
}

func TestKeyDoesNotPrint(t *testing.T) {
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		require.Equal(t, "[redacted]", fmt.Sprintf(verb, key(t, 1)))
	}
}
