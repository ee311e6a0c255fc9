package relay

import (
	"strconv"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/transcript"
)

// FuzzPosition: the headers of a chunk are refused, or they say where the next relay goes on, and it writes the same again.
func FuzzPosition(f *testing.F) {
	p := Position{Chunk: 7}
	p.Stream(Stdout).End = 100
	_, _ = p.Stream(Stdout).sum.Write([]byte("abc"))
	p.Stream(Stderr).skip(50)
	h := nats.Header{}
	require.NoError(f, p.put(h))
	f.Add(uint64(7), uint64(100), uint64(50), h.Get(HeaderState))
	f.Add(uint64(0), uint64(0), uint64(0), "{}")
	f.Add(uint64(1), uint64(1), uint64(0), `{"1":{"h":"c2hhAw=="}}`)
	f.Add(uint64(1), uint64(0), uint64(0), `null`)
	f.Add(uint64(1), uint64(0), uint64(9), `{"2":{"d":18446744073709551615,"g":[[1,2,3]],"h":null}}`)
	f.Fuzz(func(t *testing.T, chunk, stdout, stderr uint64, state string) {
		h := nats.Header{
			transcript.HeaderChunk: {strconv.FormatUint(chunk, 10)}, transcript.HeaderStdoutEnd: {strconv.FormatUint(stdout, 10)},
			transcript.HeaderStderrEnd: {strconv.FormatUint(stderr, 10)}, HeaderState: {state},
		}
		p, err := parsePosition(5, h)
		if err != nil {
			return
		}
		again := nats.Header{}
		require.NoError(t, p.put(again))
		q, err := parsePosition(5, again)
		require.NoError(t, err)
		for _, stream := range []uint32{Stdout, Stderr} {
			a, b := p.Output(stream), q.Output(stream)
			require.Equal(t, a.GetBytes(), b.GetBytes())
			require.Equal(t, a.GetSha256(), b.GetSha256())
			if a.GetBytes() > 0 {
				require.Equal(t, a.GetDroppedBytes(), b.GetDroppedBytes())
				require.Len(t, b.GetGaps(), len(a.GetGaps()))
			}
		}
		require.Equal(t, p.Chunk, q.Chunk)
	})
}
