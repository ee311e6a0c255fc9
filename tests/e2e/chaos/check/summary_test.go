package check_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/check"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

func TestSummaryCountsWhatWasFoundAndSaysWhatWasNotJudged(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	h := journal.History{Seed: 7, Calls: []journal.Call{
		{Op: journal.Create, Began: began, Answer: journal.Acknowledged},
		{Op: journal.Create, Answer: journal.Refused},
		{Op: journal.Exec, Answer: journal.Unknown, Seen: []journal.Piece{{From: 3, To: 10}, {From: 10, To: 99, Gap: true}}},
		{Op: journal.Exec},
	}}
	e := evidence.Evidence{Taken: began.Add(time.Minute), Settled: &evidence.Settling{Took: time.Second, Agreed: true}}
	var found []check.Violation
	for i := range 30 {
		found = append(found, check.Violation{Invariant: check.NoLeak, Subject: fmt.Sprint(i), Detail: "left"})
	}
	found = append(found, check.Violation{Invariant: check.OneStart, Subject: "x", Detail: "twice"})
	var recoveries []check.Recovery
	for i := range 100 {
		recoveries = append(recoveries, check.Recovery{Fault: "kill exec", Took: time.Duration(100-i) * time.Second})
	}
	recoveries = append(recoveries, check.Recovery{Fault: "cut", Took: time.Second})

	s := check.Summarize(h, e, found, recoveries)
	require.Equal(t, time.Minute, s.Took)
	require.Equal(t, map[journal.Op]map[string]int{
		journal.Create: {"acknowledged": 1, "refused": 1}, journal.Exec: {"unknown": 1, check.Unanswered: 1},
	}, s.Calls)
	require.Equal(t, uint64(7), s.SeenBytes)
	require.Equal(t, []check.Recovered{
		{Fault: "cut", Times: 1, P50: time.Second, P99: time.Second, Max: time.Second},
		{Fault: "kill exec", Times: 100, P50: 50 * time.Second, P99: 99 * time.Second, Max: 100 * time.Second},
	}, s.Recovery)
	counts := map[check.Invariant]int{}
	for _, c := range s.Violations {
		counts[c.Invariant] = c.Count
	}
	require.Len(t, counts, len(check.Invariants()))
	require.Equal(t, 30, counts[check.NoLeak])
	require.Equal(t, 1, counts[check.OneStart])
	require.Len(t, s.First, check.MostShown+1)
	require.False(t, s.OK())

	var text, data bytes.Buffer
	require.NoError(t, s.Text(&text))
	for _, part := range []string{"seed", "f no leak        30", "kill exec", "1m39s", "not judged", "witnesses", "unanswered"} {
		require.Contains(t, text.String(), part)
	}
	require.NoError(t, s.JSON(&data))
	var back check.Summary
	require.NoError(t, json.Unmarshal(data.Bytes(), &back))
	require.Equal(t, s, back)
}

func TestRunOfWhichNothingWasCollectedIsNotOK(t *testing.T) {
	h, e := journal.History{}, evidence.Evidence{}
	require.False(t, check.Summarize(h, e, check.All(h, e), nil).OK())
}
