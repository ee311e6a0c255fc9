package cgroup

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzCounters: a file of counters of any content gives numbers, each that of its own line.
func FuzzCounters(f *testing.F) {
	for _, s := range []string{"", "usage_usec 7\nuser_usec 8\n", "7\n", "usage_usec\n", "usage_usec -1", "usage_usec 99999999999999999999\n", " usage_usec 7", "usage_usec  7 \n\n"} {
		f.Add([]byte(s))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > longest {
			return
		}
		file, err := os.CreateTemp(dir, "stat")
		require.NoError(t, err)
		defer func() { _ = os.Remove(file.Name()) }()
		_, err = file.Write(data)
		require.NoError(t, err)
		require.NoError(t, file.Close())
		c := &counters{}
		name := filepath.Base(file.Name())
		n := c.keyed(dir, name, "usage_usec", "usage_usec", "absent key")
		require.Len(t, n, 3)
		require.Equal(t, n[0], n[1])
		require.Zero(t, n[2], "no key has a space in it")
		_ = c.number(dir, name)
	})
}
