package cursor_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/cursor"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

func TestTexts(t *testing.T) {
	for text, want := range map[string]cursor.Cursor{
		"": {}, "7": {Seq: 7}, "0": {}, "abc:7": {Log: "abc", Seq: 7}, "abc:0": {Log: "abc"}, "18446744073709551615": {Seq: 1<<64 - 1},
	} {
		got, err := cursor.Parse(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got)
		again, err := cursor.Parse(got.String())
		require.NoError(t, err)
		require.Equal(t, want, again)
	}
	for _, text := range []string{"x", "-1", ":7", "a b:7", "a:", "a:b", "18446744073709551616", "7:a:7", " 7"} {
		_, err := cursor.Parse(text)
		require.Equal(t, fault.InvalidArgument, fault.CodeOf(err), text)
	}
}

// A cursor beyond the end waits; one below what is kept, or of another log, is told where the oldest place is.
func TestACursorThatHasExpiredIsToldTheOldestPlace(t *testing.T) {
	f := natstest.Start(t)
	log, agg := jslog.New(f.JS), subject.Sandbox("acme", "s")
	for range 5 {
		h, err := log.Load(t.Context(), agg)
		require.NoError(t, err)
		_, err = log.Append(t.Context(), agg, h.Tail(), envelope.Event{Meta: envelope.Meta{ID: ids.New()}, Body: &eventsv1.SandboxReady{}})
		require.NoError(t, err)
	}
	now, err := cursor.BoundsOf(t.Context(), f.JS)
	require.NoError(t, err)
	require.NotEmpty(t, now.Log)
	for _, good := range []cursor.Cursor{{}, {Seq: 3}, {Log: now.Log, Seq: 3}, {Seq: 99}, {Log: now.Log}} {
		require.NoError(t, now.Holds(good), good)
	}
	refused(t, now, cursor.Cursor{Log: "another", Seq: 3}, now.Log+":0")

	s, err := f.JS.Stream(t.Context(), topology.StreamEvents)
	require.NoError(t, err)
	require.NoError(t, s.Purge(t.Context(), jetstream.WithPurgeSequence(4)))
	now, err = cursor.BoundsOf(t.Context(), f.JS)
	require.NoError(t, err)
	refused(t, now, cursor.Cursor{Seq: 1}, now.Log+":3")
	refused(t, now, cursor.Cursor{Log: now.Log, Seq: 2}, now.Log+":3")
	for _, good := range []cursor.Cursor{{}, {Seq: 3}, {Seq: 99}} {
		require.NoError(t, now.Holds(good), good)
	}
}

func refused(t *testing.T, b cursor.Bounds, c cursor.Cursor, oldest string) {
	t.Helper()
	err := b.Holds(c)
	require.True(t, fault.Is(err, fault.ReasonCursorExpired), "%v: %v", c, err)
	require.ErrorContains(t, err, oldest)
	require.Equal(t, "the oldest position is "+oldest, fault.From(err).Fields["cursor"])
}
