package edge

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/transcript"
	"github.com/sandtrail/sandtrail/services/gateway/internal/stored"
)

func TestABodyHoldsWhatHasComeOfIt(t *testing.T) {
	stopped := errors.New("the sender stopped")
	half := func(n int) io.Reader {
		return io.MultiReader(strings.NewReader(strings.Repeat("x", n)), iotest.ErrReader(stopped))
	}
	for name, c := range map[string]struct {
		r               io.Reader
		most, announced int64
		memory          int
		length, held    int
		err             error
	}{
		"nothing":                    {strings.NewReader(""), 100, 0, 1 << 20, 0, 1, nil},
		"as announced":               {strings.NewReader(strings.Repeat("x", 9000)), 1 << 20, 9000, 1 << 20, 9000, 9001, nil},
		"unannounced":                {strings.NewReader(strings.Repeat("x", 9000)), 1 << 20, -1, 1 << 20, 9000, 16 << 10, nil},
		"less than announced":        {strings.NewReader("x"), 1 << 20, 1 << 19, 1 << 20, 1, 4 << 10, nil},
		"more than it may":           {strings.NewReader(strings.Repeat("x", 200)), 100, -1, 1 << 20, 101, 101, nil},
		"one that stops half way":    {half(10), 1 << 20, 1 << 19, 1 << 20, 0, 4 << 10, stopped},
		"over the share of a tenant": {strings.NewReader(strings.Repeat("x", 9000)), 1 << 20, -1, 16 << 10, 0, 8 << 10, Busy()},
	} {
		t.Run(name, func(t *testing.T) {
			share := stored.NewShares(c.memory).Of("acme")
			body, held, err := Gather(c.r, c.most, c.announced, share)
			require.Equal(t, c.err, err)
			require.Len(t, body, c.length)
			require.Equal(t, c.held, held)
			share.Give(held)
			require.True(t, share.Take(c.memory/2), "all of it was given back")
		})
	}
}

// What an answer holds of an exec ends where its tenant's memory does, and says so.
func TestGatheredOutputIsBoundedByTheTenantsShare(t *testing.T) {
	chunk := func(stream, data string) *transcript.Chunk {
		return &transcript.Chunk{Stream: stream, Data: []byte(data)}
	}
	shares := stored.NewShares(40)
	g := NewGathered(shares.Of("acme"), true)
	g.Add(nil)
	g.Add(chunk(transcript.Stdout, "1234"))
	g.Add(chunk(transcript.Stderr, "567"))
	g.Add(chunk(transcript.Stdout, "too much"))
	g.Add(chunk(transcript.Stdout, "8"))
	require.Equal(t, []string{"1234", "567", "1234567"}, []string{string(g.Stdout), string(g.Stderr), string(g.Both)})
	require.True(t, g.cut[0])
	require.False(t, g.cut[1])
	g.Release()
	g.Release()
	require.True(t, shares.Of("acme").Take(20))
	require.Equal(t, fault.Unavailable, fault.CodeOf(Busy()))
}
