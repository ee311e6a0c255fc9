package relay

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/natstest"
)

// Whoever records how far the output goes must not do so by a replica that is behind.
func TestTheFinalPositionIsNotThatOfAReplicaThatLags(t *testing.T) {
	f := natstest.Start(t)
	truth := newRelay(t, f.JS, Options{})
	behind := newRelay(t, f.Behind(t, f.NC, time.Minute), Options{})
	p := truth.publisher(testExec, Position{})
	require.NoError(t, p.publish(t.Context(), segment{stream: Stdout, data: []byte("all")}))
	pos, err := behind.Position(t.Context(), testExec)
	require.NoError(t, err)
	require.Zero(t, pos.Chunk, "the replica lags")
	pos, err = behind.final(t.Context(), testExec)
	require.NoError(t, err)
	require.EqualValues(t, 1, pos.Chunk)
	require.EqualValues(t, 3, pos.Stream(Stdout).End)
}
