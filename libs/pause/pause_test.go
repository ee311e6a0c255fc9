package pause_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/pause"
)

func TestItLastsAsLongAsItWasAskedTo(t *testing.T) {
	for _, d := range []time.Duration{-time.Second, 0, 20 * time.Millisecond} {
		begin := time.Now()
		require.NoError(t, pause.For(t.Context(), d))
		require.GreaterOrEqual(t, time.Since(begin), d)
	}
}

func TestItEndsWithItsContextAndSaysWhy(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, pause.For(ctx, time.Hour), context.Canceled)
	late, end := context.WithTimeout(t.Context(), time.Millisecond)
	defer end()
	require.ErrorIs(t, pause.For(late, time.Hour), context.DeadlineExceeded)
}
