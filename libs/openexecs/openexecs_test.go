package openexecs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// More execs than one direct get answers at once must be found too.
func TestFindsTheOpenOnesAmongMany(t *testing.T) {
	f := natstest.Start(t)
	box := ids.New()
	none, err := Of(t.Context(), f.JS, "acme", box)
	require.NoError(t, err)
	require.Empty(t, none)

	var open []subject.Aggregate
	for _, n := range []int{20, 1200} {
		for i := range n {
			agg := subject.Exec("acme", box, ids.New())
			bodies := []proto.Message{&eventsv1.ExecStarted{}, &eventsv1.ExecCompleted{}}
			switch {
			case i%200 == 7:
				bodies = bodies[:1]
				open = append(open, agg)
			case i%200 == 8:
				bodies[1] = &eventsv1.ExecLost{}
			}
			for _, b := range bodies {
				m, _, err := envelope.Encode(agg.Subject(), envelope.Event{Meta: envelope.Meta{ID: ids.New(), Time: time.Now()}, Body: b}, nil)
				require.NoError(t, err)
				_, err = f.JS.PublishMsgAsync(m)
				require.NoError(t, err)
			}
		}
		<-f.JS.PublishAsyncComplete()
		got, err := Of(t.Context(), f.JS, "acme", box)
		require.NoError(t, err)
		require.ElementsMatch(t, open, got)
	}
	other, err := Of(t.Context(), f.JS, "other", box)
	require.NoError(t, err)
	require.Empty(t, other)
}

func TestFindsTheSandboxesThatAreNotDestroyed(t *testing.T) {
	f := natstest.Start(t)
	var open []subject.Aggregate
	for i, body := range []proto.Message{&eventsv1.SandboxReady{}, &eventsv1.SandboxDestroyed{}, &eventsv1.SandboxFailed{}} {
		agg := subject.Sandbox([]string{"acme", "other"}[i%2], ids.New())
		m, _, err := envelope.Encode(agg.Subject(), envelope.Event{Meta: envelope.Meta{ID: ids.New(), Time: time.Now()}, Body: body}, nil)
		require.NoError(t, err)
		_, err = f.JS.PublishMsg(t.Context(), m)
		require.NoError(t, err)
		if i != 1 {
			open = append(open, agg)
		}
	}
	got, err := Sandboxes(t.Context(), f.JS)
	require.NoError(t, err)
	require.ElementsMatch(t, open, got)
}
