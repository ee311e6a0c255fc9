package feed_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/feed"
	"github.com/sandtrail/sandtrail/libs/natstest"
)

// However far a reader is when a server goes away, its connection is only lost, not closed: it may open the next feed.
func TestAServerThatGoesAwayClosesNoConnectionOfTheReader(t *testing.T) {
	for _, read := range []int{0, 1, feed.MaxMessages - 1, feed.MaxMessages} {
		n := natstest.Start(t)
		fill(t, n.JS, feed.MaxMessages, 10)
		f := open(t, n.JS, feed.Options{})
		for range read {
			next(t, f)
		}
		n.Stop()
		require.Eventually(t, func() bool { return !n.NC.IsConnected() }, patience, time.Millisecond)
		var err error
		for err == nil {
			_, _, err = f.Next(t.Context(), patience)
		}
		require.ErrorIs(t, err, feed.ErrGap, "%d messages were read", read)
	}
}
