package usecase

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/turns"
)

// A create whose command nobody answers keeps its turn for turnTime and no longer; who finds as many waiting as may is told to come again.
func TestTurnsEndAndQueuesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		creates := turns.New(2, 1, 1)
		begin := time.Now()
		_, err := turn(t.Context(), creates, "acme")
		require.NoError(t, err)
		second := make(chan time.Duration, 1)
		go func() {
			done, err := turn(t.Context(), creates, "acme")
			if err == nil {
				second <- time.Since(begin)
				done()
			}
		}()
		synctest.Wait()
		_, err = turn(t.Context(), creates, "acme")
		require.True(t, fault.Is(err, fault.ReasonTooManyCalls), "%v", err)
		require.Equal(t, fault.ResourceExhausted, fault.CodeOf(err))
		require.Equal(t, time.Second, fault.From(err).RetryAfter)
		require.Equal(t, turnTime, <-second)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = turn(t.Context(), creates, "globex")
		require.NoError(t, err)
		_, err = turn(ctx, creates, "globex")
		require.ErrorIs(t, err, context.Canceled)
	})
}
