package eventlogtest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
)

func testExecute(t *testing.T, log eventlog.Log) {
	agg, mine, rival := aggregate(), events(1), events(1)
	decisions := 0
	h, err := eventlog.Execute(limited(t), log, agg, func(h eventlog.History) ([]envelope.Event, error) {
		decisions++
		if decisions == 1 {
			appendTo(t, log, agg, h.Tail(), rival...)
		}
		return mine, nil
	})
	require.NoError(t, err)
	require.GreaterOrEqual(t, decisions, 2)
	require.Equal(t, wantIDs(rival[0], mine[0]), eventIDs(h.Events))
	require.NoError(t, eventlog.Verify(h))

	refusal := errors.New("no")
	_, err = eventlog.Execute(limited(t), log, agg, func(eventlog.History) ([]envelope.Event, error) { return nil, refusal })
	require.ErrorIs(t, err, refusal)
	same, err := eventlog.Execute(limited(t), log, agg, func(eventlog.History) ([]envelope.Event, error) { return nil, nil })
	require.NoError(t, err)
	require.LessOrEqual(t, len(same.Events), 2)
}

func testExecuteConcurrent(t *testing.T, log eventlog.Log) {
	const n = 4
	agg := aggregate()
	var wg sync.WaitGroup
	results := make([]error, n)
	all := make([][]envelope.Event, n)
	for i := range n {
		all[i] = events(1)
		wg.Go(func() {
			_, results[i] = eventlog.Execute(limited(t), log, agg, func(eventlog.History) ([]envelope.Event, error) {
				return all[i], nil
			})
		})
	}
	wg.Wait()
	want := []string{}
	for i, err := range results {
		if err == nil {
			want = append(want, all[i][0].ID)
			continue
		}
		require.True(t, fault.Is(err, fault.ReasonConflict), "%v", err)
	}
	require.ElementsMatch(t, want, eventIDs(eventually(t, log, agg, len(want)).Events))
}

// lagging shows nothing at its first load, as a replica may.
type lagging struct {
	eventlog.Log
	asked bool
}

func (l *lagging) Load(ctx context.Context, agg subject.Aggregate) (eventlog.History, error) {
	if !l.asked {
		l.asked = true
		return eventlog.History{Aggregate: agg}, nil
	}
	return l.Log.Load(ctx, agg)
}

func testExecuteRepeat(t *testing.T, log eventlog.Log) {
	agg, e := aggregate(), events(2)
	decide := func(eventlog.History) ([]envelope.Event, error) { return e, nil }
	first, err := eventlog.Execute(limited(t), log, agg, decide)
	require.NoError(t, err)
	appendTo(t, log, agg, first.Tail(), events(1)...)
	eventually(t, log, agg, 3)
	again, err := eventlog.Execute(limited(t), log, agg, decide)
	require.NoError(t, err)
	require.Len(t, again.Events, 3, "with what came behind")
	require.Equal(t, eventIDs(first.Events), eventIDs(again.Events[:2]))
	// Also where the replica that is asked first shows none of them.
	behind, err := eventlog.Execute(limited(t), &lagging{Log: log}, agg, decide)
	require.NoError(t, err)
	require.Equal(t, eventIDs(again.Events), eventIDs(behind.Events))
	require.Len(t, eventually(t, log, agg, 3).Events, 3, "nothing was appended")

	e[0].Type = "sandtrail.events.v1.SandboxReady"
	_, err = eventlog.Execute(limited(t), log, agg, decide)
	require.Equal(t, fault.Internal, fault.CodeOf(err), "one id for two facts: %v", err)
}

func testExecuteGivesUp(t *testing.T, log eventlog.Log) {
	agg, decisions := aggregate(), 0
	tail := eventlog.Tail{}
	_, err := eventlog.Execute(limited(t), log, agg, func(eventlog.History) ([]envelope.Event, error) {
		decisions++
		tail = appendTo(t, log, agg, tail, events(1)...)
		return events(1), nil
	})
	require.True(t, fault.Is(err, fault.ReasonConflict), "%v", err)
	require.Equal(t, eventlog.MaxAttempts, decisions)
}
