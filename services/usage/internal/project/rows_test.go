package project_test

import (
	"crypto/sha256"
	"testing"

	"github.com/stretchr/testify/require"

	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/services/usage/internal/enginetest"
	"github.com/sandtrail/sandtrail/services/usage/internal/project"
)

// Whoever reads the log again makes the rows that the projector made, and the same bytes each time, whatever is there already.
func TestRowsOfAReplayAreThoseOfTheProjector(t *testing.T) {
	n, e := natstest.Start(t), enginetest.Start(t, "")
	c := enginetest.Open(t, e.URL())
	for i := range 4 {
		publish(t, n.JS, life(t, i, 25)...)
	}
	// One that can never be billed: its exec's id is none.
	publish(t, n.JS, message(t, subject.Exec("acme", "s", "none").Subject(), start, &eventsv1.ExecCompleted{Reason: "exited"}))
	stop, _ := run(t, n.JS, c)
	awaitDone(t, n.JS)
	require.NoError(t, stop())
	want := ask(t, e.HTTP(), totals)

	again := func(every int) (sum [sha256.Size]byte) {
		rows, err := project.NewRows(t.Context(), n.JS, c)
		require.NoError(t, err)
		h, seen := sha256.New(), 0
		require.NoError(t, directget.Each(t.Context(), n.JS, topology.StreamEvents, subject.Events, 1, func(m directget.Message) error {
			data, err := rows.Take(t.Context(), m)
			require.NoError(t, err)
			h.Write(data)
			if seen++; seen%every == 0 {
				return rows.Flush(t.Context())
			}
			return nil
		}))
		require.NoError(t, rows.Flush(t.Context()))
		require.NoError(t, rows.Flush(t.Context()), "nothing is left")
		h.Sum(sum[:0])
		return sum
	}
	first := again(7)
	require.Equal(t, want, ask(t, e.HTTP(), totals), "over what is there")
	require.NoError(t, c.Clear(t.Context()))
	require.Equal(t, first, again(1000))
	require.Equal(t, want, ask(t, e.HTTP(), totals), "from nothing")
}
