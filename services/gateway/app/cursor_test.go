package app_test

import (
	"io"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/topology"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// A cursor below what the log still has is an error with the oldest position, never a silent gap; beyond the end there is nothing yet.
func TestACursorOfEventsThatHasExpiredIsTold(t *testing.T) {
	w := newWorld(t, map[string]string{"alice": "acme"})
	for range 4 {
		w.create(w.as("alice"))
	}
	s, err := w.JS.Stream(t.Context(), topology.StreamEvents)
	require.NoError(t, err)
	last := s.CachedInfo().State.LastSeq
	require.Greater(t, last, uint64(6))
	require.NoError(t, s.Purge(t.Context(), jetstream.WithPurgeSequence(6)))

	first := func(after uint64) (*computev1.WatchEventsResponse, error) {
		stream, err := w.WatchEvents(w.as("alice"), &computev1.WatchEventsRequest{AfterSequence: after, NoFollow: true})
		require.NoError(t, err)
		return stream.Recv()
	}
	for _, after := range []uint64{1, 4} {
		_, err := first(after)
		f := fault.FromStatus(err)
		require.Equal(t, fault.FailedPrecondition, f.Code, "%v", err)
		require.Equal(t, fault.ReasonCursorExpired, f.Reason)
		require.Equal(t, map[string]string{"after_sequence": "the oldest position is 5"}, f.Fields)
	}
	for _, after := range []uint64{0, 5} {
		e, err := first(after)
		require.NoError(t, err)
		require.EqualValues(t, 6, e.GetSequence(), "what there is, from %d", after)
	}
	_, err = first(last + 100)
	require.ErrorIs(t, err, io.EOF)
}
