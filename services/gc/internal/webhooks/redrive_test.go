package webhooks_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/events"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
)

// A redrive names a sequence: only an event that the webhook would have been sent goes out for it.
func TestARedriveSendsOnlyWhatTheWebhookWants(t *testing.T) {
	w := newWorld(t)
	p := listen(t)
	id := w.register(p, p.URL, events.Filter{Sandbox: box(1).ID})
	mine := w.write(box(1), 1)
	w.write(subject.Sandbox("other", "s1"), 1)
	w.write(box(2), 1)
	w.run()
	w.until(func() bool { return len(p.taken()) == 1 }, "it is sent what it wants")
	redrive := func(agg subject.Aggregate) error {
		last, err := w.log.LastSeq(t.Context(), agg)
		require.NoError(t, err)
		body, err := proto.Marshal(&commandsv1.RedriveCall{Sequence: last})
		require.NoError(t, err)
		m, err := w.JS.Conn().Request(subject.Redrive(topology.ConsumerWebhook(id)), body, 10*time.Second)
		require.NoError(t, err)
		out := &commandsv1.Outcome{}
		require.NoError(t, proto.Unmarshal(m.Data, out))
		if f := fault.FromDetail(out.GetError()); f != nil {
			return f
		}
		return nil
	}
	for _, foreign := range []subject.Aggregate{subject.Sandbox("other", "s1"), box(2), subject.Webhook("acme", id)} {
		require.ErrorContains(t, redrive(foreign), "not one of this webhook's")
		require.Equal(t, 1, p.count(), foreign.Subject())
	}
	require.NoError(t, redrive(box(1)))
	require.Equal(t, 2, p.count())
	require.Equal(t, mine[0], p.taken()[1].ID)
}
