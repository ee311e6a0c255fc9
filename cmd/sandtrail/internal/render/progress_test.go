package render

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHowFarACopyIs(t *testing.T) {
	for _, c := range []struct {
		done, total int64
		took        time.Duration
		want        string
	}{
		{0, 1 << 30, 0, "[------------------------]   0 %  0 B of 1.0 GiB"},
		{512 << 20, 1 << 30, 4 * time.Second, "[############------------]  50 %  512.0 MiB of 1.0 GiB  128.0 MiB/s  4.0s left"},
		{1 << 30, 1 << 30, 8 * time.Second, "[########################] 100 %  1.0 GiB of 1.0 GiB  128.0 MiB/s"},
		{2 << 30, 1 << 30, 8 * time.Second, "[########################] 100 %  2.0 GiB of 1.0 GiB  256.0 MiB/s"},
		{1 << 20, -1, 2 * time.Second, "1.0 MiB  512.0 KiB/s"},
		{0, 0, 2 * time.Second, "0 B"},
	} {
		require.Equal(t, c.want, moved(c.done, c.total, c.took))
	}
}

// What is no terminal gets nothing.
func TestProgressIsForTerminals(t *testing.T) {
	var b bytes.Buffer
	p := NewProgress(&b)
	p.Bytes("f", 1, 2)
	p.Clear()
	require.Empty(t, b.String())
}
