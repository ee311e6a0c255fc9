package relay

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/pause"
)

// Whenever an output is declared final while relays store it: what its position says is what is there for ever.
func TestNothingIsStoredBehindASeal(t *testing.T) {
	for range 20 {
		js, _ := broker(t)
		p := newProgram(300, func() int { return 1 + rand.IntN(2000) })
		relays := make(chan error, 2)
		for range 2 {
			r := newRelay(t, js, Options{Interval: time.Microsecond, MinChunk: 1})
			go func() {
				for {
					pos, err := r.Position(t.Context(), testExec)
					if err == nil {
						_, _, err = r.Run(t.Context(), testExec, pos, p.attach)
					}
					if err == nil || err == ErrSealed { //nolint:errorlint // it comes as it is
						relays <- err
						return
					}
				}
			}()
		}
		require.NoError(t, pause.For(t.Context(), rand.N(30*time.Millisecond)))
		r := newRelay(t, js, Options{})
		pos, err := r.Seal(t.Context(), testExec)
		require.NoError(t, err)
		require.True(t, pos.Sealed)
		again, err := r.Seal(t.Context(), testExec)
		require.NoError(t, err)
		require.Equal(t, pos.Chunk, again.Chunk, "it is sealed once")
		for range cap(relays) {
			<-relays // one that had stored all of it when it was sealed has seen the end
		}
		got, chunks := stored(t, js)
		require.Equal(t, uint64(chunks), pos.Chunk)
		require.Equal(t, uint64(len(got[Stdout])), pos.Stream(Stdout).End)
		require.Equal(t, uint64(len(got[Stderr])), pos.Stream(Stderr).End)
		require.Equal(t, p.totals[Stdout][:len(got[Stdout])], append([]byte{}, got[Stdout]...))
	}
}

func TestAnOutputWithoutBytesCanBeSealed(t *testing.T) {
	js, _ := broker(t)
	r := newRelay(t, js, Options{})
	pos, err := r.Seal(t.Context(), testExec)
	require.NoError(t, err)
	require.EqualValues(t, 1, pos.Chunk)
	pos, err = r.Position(t.Context(), testExec)
	require.NoError(t, err)
	_, _, err = r.Run(t.Context(), testExec, pos, newProgram(1, func() int { return 1 }).attach)
	require.ErrorIs(t, err, ErrSealed)
}
