package watch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func taken(t *testing.T, g *gate) (all []Event) {
	t.Helper()
	for line := range bytes.Lines(g.take()) {
		var e Event
		require.NoError(t, json.Unmarshal(line, &e))
		all = append(all, e)
	}
	return all
}

func TestChangesOfABurstAreToldOnce(t *testing.T) {
	g := newGate(time.Now())
	for _, e := range []Event{{"f", Create}, {"f", Write}, {"f", Write}, {"g", Write}, {"f", Write}, {"f", Remove}, {"f", Create}} {
		g.add(e)
	}
	require.Equal(t, []Event{{"f", Create}, {"f", Write}, {"g", Write}, {"f", Remove}, {"f", Create}}, taken(t, g))
	require.False(t, g.waits())
	g.add(Event{"f", Create})
	require.Equal(t, []Event{{"f", Create}}, taken(t, g), "the next burst is another one")
}

func TestMoreThanFitsIsAnOverflow(t *testing.T) {
	g := newGate(time.Now())
	for i := range 2 * mostGathered {
		g.add(Event{fmt.Sprint(i), Create})
	}
	all := taken(t, g)
	require.Len(t, all, mostGathered+1)
	require.Equal(t, Event{".", Overflow}, all[mostGathered])
	g.add(Event{"deep", Overflow})
	require.Equal(t, []Event{{".", Overflow}}, taken(t, g))
}

// Nobody's output grows for ever: what nobody reads is not written, and who comes back is told that something is missing.
func TestWhatNobodyReadsIsNotWritten(t *testing.T) {
	now := time.Now()
	g := newGate(now)
	for i := range 1 << 20 {
		g.add(Event{fmt.Sprint("a-file-of-the-burst-", i), Create})
		if i%mostGathered == 0 {
			g.take()
		}
	}
	require.LessOrEqual(t, g.written, uint64(mostUnread+mostGathered*100))
	require.False(t, g.waits())
	g.hear(int(g.written), now) //nolint:gosec // about a mebibyte
	require.True(t, g.waits())
	all := taken(t, g)
	require.Equal(t, Event{".", Overflow}, all[len(all)-1])
	require.False(t, g.waits())
}

func TestAWatcherWithoutAReaderEnds(t *testing.T) {
	now := time.Now()
	g := newGate(now)
	line, over := g.ask(now.Add(askAfter))
	require.Equal(t, []any{0, false}, []any{len(line), over})
	line, over = g.ask(now.Add(askAfter + 1))
	require.Equal(t, []any{"\n", false}, []any{string(line), over})
	line, over = g.ask(now.Add(patience))
	require.Equal(t, []any{0, false}, []any{len(line), over}, "it asks once")
	_, over = g.ask(now.Add(patience + 1))
	require.True(t, over)

	g.hear(1, now.Add(patience))
	line, over = g.ask(now.Add(patience + askAfter + 1))
	require.Equal(t, []any{"\n", false}, []any{string(line), over}, "who has read everything is asked again")
}
