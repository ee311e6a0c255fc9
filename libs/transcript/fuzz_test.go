package transcript_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/transcript"
)

// FuzzDecode: headers are refused, or they are those of a chunk that is written again as it was.
func FuzzDecode(f *testing.F) {
	whole := transcript.Encode("out.acme.s.x", transcript.Chunk{
		Number: 7, Stream: transcript.Stderr, Offset: 1 << 40, Time: time.Unix(1, 2), StdoutEnd: 3, StderrEnd: 1<<40 + 1,
	}).Header
	add := func(h nats.Header, data string) {
		f.Add(h.Get(transcript.HeaderStream), h.Get(transcript.HeaderOffset), h.Get(transcript.HeaderChunk), h.Get(transcript.HeaderGapTo),
			h.Get(transcript.HeaderStdoutEnd), h.Get(transcript.HeaderStderrEnd), h.Get(transcript.HeaderTime), []byte(data))
	}
	add(whole, "x")
	whole.Set(transcript.HeaderGapTo, "9")
	add(whole, "")
	whole.Set(transcript.HeaderOffset, "18446744073709551616")
	add(whole, "")
	add(nats.Header{}, "")
	f.Fuzz(func(t *testing.T, stream, offset, chunk, gap, stdout, stderr, at string, data []byte) {
		h := nats.Header{
			transcript.HeaderStream: {stream}, transcript.HeaderOffset: {offset}, transcript.HeaderChunk: {chunk}, transcript.HeaderGapTo: {gap},
			transcript.HeaderStdoutEnd: {stdout}, transcript.HeaderStderrEnd: {stderr}, transcript.HeaderTime: {at},
		}
		c, err := transcript.Decode(h, data, 5)
		if err != nil {
			return
		}
		require.Contains(t, []string{transcript.Stdout, transcript.Stderr}, c.Stream)
		again, err := transcript.Decode(transcript.Encode("out.acme.s.x", c).Header, c.Data, c.Seq)
		require.NoError(t, err)
		require.True(t, c.Time.Equal(again.Time))
		c.Time, again.Time = time.Time{}, time.Time{}
		require.Equal(t, c, again)
	})
}
