package up

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPaceFollowsTheRateOfGarbage(t *testing.T) {
	var p pacer
	now, allocated := time.Unix(1, 0), uint64(1<<40)
	step := func(rate float64, d time.Duration) bool {
		now, allocated = now.Add(d), allocated+uint64(rate*d.Seconds())
		return p.take(allocated, now)
	}
	require.False(t, step(0, look), "what was allocated before counts for nothing")
	require.False(t, p.flood)
	require.False(t, step(floodRate/2, look))
	require.True(t, step(2*floodRate, look))
	require.True(t, p.flood)
	require.False(t, step(2*floodRate, look), "it changes once")
	// A pause of a program is not the end of its flood.
	require.False(t, step(0, calmAfter/2))
	require.False(t, step(2*floodRate, look))
	require.False(t, step(0, calmAfter/2))
	require.True(t, p.flood)
	require.True(t, step(0, calmAfter))
	require.False(t, p.flood)
	require.False(t, step(0, calmAfter))
}
