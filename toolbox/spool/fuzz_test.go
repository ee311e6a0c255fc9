package spool

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzRanges: a list of ranges is disjoint, rising and bounded, and holds at least what was added; up to its bound, exactly that.
func FuzzRanges(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 2, 9})
	f.Add([]byte{0, 0, 255, 1, 5, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var (
			r    ranges
			want [512]bool
		)
		for ; len(b) >= 2; b = b[2:] {
			from, n := uint64(b[0]), uint64(b[1])
			if n == 0 {
				continue
			}
			r.add(from, from+n)
			for i := from; i < from+n; i++ {
				want[i] = true
			}
			require.LessOrEqual(t, len(r), maxRanges)
			for i := range r {
				require.Less(t, r[i].from, r[i].to)
				if i > 0 {
					require.Less(t, r[i-1].to, r[i].from)
				}
			}
		}
		for i, w := range want {
			_, in := r.at(uint64(i))
			if w {
				require.True(t, in, "%d is lost", i)
			} else if len(r) < maxRanges {
				require.False(t, in, "%d was never added", i)
			}
		}
	})
}

// FuzzSpool: a program writes in any pieces, readers come from any offset at any time and the beginning is trimmed: each byte that a
// reader gets is the one that was written there, in order, and what it does not get is told as a skip.
func FuzzSpool(f *testing.F) {
	f.Add(uint16(1024), []byte{0, 200, 1, 100, 0, 255, 2, 10, 0, 255, 3, 20, 0, 255})
	f.Add(uint16(4000), []byte{0, 255, 0, 255, 0, 255, 4, 0, 0, 255, 1, 255, 3, 255, 2, 0})
	f.Fuzz(func(t *testing.T, capacity uint16, ops []byte) {
		if len(ops) > 200 {
			return
		}
		p := New(Options{Dir: t.TempDir() + "/s", Cap: uint64(capacity)})
		p.Release() // nobody reads while this one writes
		defer func() { require.NoError(t, p.Remove()) }()
		var written [2][]byte
		next := byte(0)
		for ; len(ops) >= 2; ops = ops[2:] {
			n := int(ops[1]) * 9
			switch ops[0] % 4 {
			case 0, 1:
				data := make([]byte, n)
				for i := range data {
					next++
					data[i] = next
				}
				id := uint32(ops[0]%4) + 1
				require.NoError(t, p.Append(id, data))
				written[id-1] = append(written[id-1], data...)
			case 2:
				p.Trim(uint64(n), uint64(n)/2)
			default:
				check(t, p, written, uint64(n), uint64(n)/3, false)
			}
		}
		p.End()
		check(t, p, written, 0, 0, true)
		for i, w := range written {
			e := p.StreamEnd(uint32(i + 1))
			require.EqualValues(t, len(w), e.GetBytes())
			require.LessOrEqual(t, e.GetDroppedBytes(), e.GetBytes())
		}
	})
}

// check reads what there is from two offsets on.
func check(t *testing.T, p *Spool, written [2][]byte, stdout, stderr uint64, ended bool) {
	t.Helper()
	r, err := p.Reader(stdout, stderr)
	require.NoError(t, err)
	defer r.Close()
	at := [2]uint64{stdout, stderr}
	buf := make([]byte, 700)
	for {
		piece, ok, err := r.poll(buf)
		if !ok || err != nil {
			if ended {
				require.ErrorIs(t, err, io.EOF)
			} else {
				require.NoError(t, err)
			}
			break
		}
		i := piece.Stream - 1
		require.Equal(t, at[i], piece.Offset)
		if piece.SkipTo > 0 {
			require.Greater(t, piece.SkipTo, piece.Offset)
			at[i] = piece.SkipTo
			continue
		}
		require.NotEmpty(t, piece.Data)
		end := piece.Offset + uint64(len(piece.Data))
		require.LessOrEqual(t, end, uint64(len(written[i])))
		require.True(t, bytes.Equal(written[i][piece.Offset:end], piece.Data))
		at[i] = end
	}
	for i := range at {
		require.GreaterOrEqual(t, at[i], uint64(len(written[i])), "it reads to the end")
	}
}
