package view_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/projection"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/view"
)

// live records n sandboxes, every other one destroyed, and returns the views that the log says they have.
func live(t *testing.T, log eventlog.Log, n int) map[string]*commandsv1.SandboxView {
	t.Helper()
	want := map[string]*commandsv1.SandboxView{}
	for i := range n {
		id := ids.New()
		commands := []sandbox.Command{
			sandbox.Create{
				CommandID: id, At: time.Unix(1, 0), SandboxID: id, Image: "i", Placement: &eventsv1.Placement{Worker: "w1"},
			},
			sandbox.Start{Worker: "w1", Attempt: 1},
			sandbox.MarkReady{Worker: "w1", Hostname: "h"},
		}
		if i%2 == 0 {
			commands = append(commands, sandbox.Destroy{}, sandbox.MarkDestroyed{At: time.Unix(9, 0)})
		}
		var s sandbox.Sandbox
		for j, c := range commands {
			h, err := eventlog.Execute(t.Context(), log, subject.Sandbox("acme", id), func(h eventlog.History) ([]envelope.Event, error) {
				s, err := sandbox.Fold(h)
				require.NoError(t, err)
				bodies, err := sandbox.Decide(s, c)
				return sandbox.Events(sandbox.CommandMeta{ID: fmt.Sprint(id, j), Time: time.Unix(int64(j), 0), Tenant: "acme"}, bodies...), err
			})
			require.NoError(t, err)
			s, err = sandbox.Fold(h)
			require.NoError(t, err)
		}
		want["acme."+id] = s.View()
	}
	return want
}

func stored(t *testing.T, kv jetstream.KeyValue, want map[string]*commandsv1.SandboxView) bool {
	t.Helper()
	for key, w := range want {
		e, err := kv.Get(t.Context(), key)
		if err != nil {
			return false
		}
		v := &commandsv1.SandboxView{}
		require.NoError(t, proto.Unmarshal(e.Value(), v))
		if !proto.Equal(w, v) {
			return false
		}
	}
	return true
}

func TestViewsCanBeLostAndAreBuiltAgain(t *testing.T) {
	f := natstest.Start(t)
	log := jslog.New(f.JS)
	want := live(t, log, 20)
	kv, err := f.JS.KeyValue(t.Context(), topology.BucketSandbox)
	require.NoError(t, err)
	p, err := view.New(t.Context(), f.JS, log, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	r := projection.New(f.JS, p, projection.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	reached := func() bool { return stored(t, kv, want) }
	require.Eventually(t, reached, 10*time.Second, 20*time.Millisecond)

	require.NoError(t, view.Clear(t.Context(), f.JS))
	require.False(t, reached())
	require.NoError(t, r.Rebuild(t.Context()))
	require.True(t, reached())

	// A view of this sequence with another content, as another version of this program may have left it.
	for key, w := range want {
		lie := proto.CloneOf(w)
		lie.Hostname = "lie"
		data, err := proto.Marshal(lie)
		require.NoError(t, err)
		_, err = kv.Put(t.Context(), key, data)
		require.NoError(t, err)
	}
	require.NoError(t, r.Rebuild(t.Context()))
	require.True(t, reached())
	cancel()
	require.NoError(t, <-done)
}

func TestAViewIsNeverReplacedByAnEarlierOne(t *testing.T) {
	f := natstest.Start(t)
	log := jslog.New(f.JS)
	want := live(t, log, 1)
	kv, err := f.JS.KeyValue(t.Context(), topology.BucketSandbox)
	require.NoError(t, err)
	for key, w := range want {
		later := proto.CloneOf(w)
		later.Sequence += 100
		data, err := proto.Marshal(later)
		require.NoError(t, err)
		_, err = kv.Put(t.Context(), key, data)
		require.NoError(t, err)
		want[key] = later
		p, err := view.New(t.Context(), f.JS, log, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		h, err := log.Load(t.Context(), subject.Sandbox("acme", w.GetSandboxId()))
		require.NoError(t, err)
		for _, e := range h.Events {
			require.NoError(t, p.Apply(t.Context(), e))
		}
	}
	require.True(t, stored(t, kv, want))
}

func TestViewsOfWhatTheLogHasLostArePutRight(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: restarts the server twice")
	}
	f := natstest.Start(t)
	log := jslog.New(f.JS)
	kv, err := f.JS.KeyValue(t.Context(), topology.BucketSandbox)
	require.NoError(t, err)
	kept := live(t, log, 4)
	project := func(there func() bool) {
		p, err := view.New(t.Context(), f.JS, log, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- projection.New(f.JS, p, projection.Options{}).Run(ctx) }()
		require.Eventually(t, there, 20*time.Second, 20*time.Millisecond)
		cancel()
		require.NoError(t, <-done)
	}
	var lost map[string]*commandsv1.SandboxView
	f.Lose(topology.StreamEvents, func() {
		lost = live(t, log, 2)
		// One that is kept goes on in what is lost.
		for key, v := range kept {
			if v.GetState() != sandbox.Ready {
				continue
			}
			agg := subject.Sandbox("acme", v.GetSandboxId())
			h, err := log.Load(t.Context(), agg)
			require.NoError(t, err)
			recorded, err := log.Append(t.Context(), agg, h.Tail(), sandbox.Events(sandbox.CommandMeta{ID: key, Tenant: "acme", Time: time.Unix(5, 0)},
				&eventsv1.SandboxDestroying{Reason: "requested"})...)
			require.NoError(t, err)
			lost[key] = proto.CloneOf(v)
			lost[key].State, lost[key].Reason, lost[key].Sequence = sandbox.Destroying, "requested", recorded[0].Seq
			break
		}
		project(func() bool { return stored(t, kv, lost) })
	})
	// Nothing is left of sandboxes that the log does not know.
	project(func() bool {
		keys, err := kv.Keys(t.Context())
		return err == nil && len(keys) == len(kept) && stored(t, kv, kept)
	})
}

// lagging is a log whose first loads give none, one, two and so on of the events, as a replica does that lags.
type lagging struct {
	eventlog.Log
	loads, done int
}

func (l *lagging) Load(ctx context.Context, agg subject.Aggregate) (eventlog.History, error) {
	h, err := l.Log.Load(ctx, agg)
	if err == nil && l.done < l.loads {
		h.Events = h.Events[:min(l.done, len(h.Events))]
		l.done++
	}
	return h, err
}

func TestViewsAreWholeWhereReplicasLag(t *testing.T) {
	f := natstest.Start(t)
	log := jslog.New(f.JS)
	kv, err := f.JS.KeyValue(t.Context(), topology.BucketSandbox)
	require.NoError(t, err)
	want := live(t, log, 2)
	for loads := range 6 {
		for key := range want {
			require.NoError(t, kv.Purge(t.Context(), key))
			_, id, _ := strings.Cut(key, ".")
			h, err := log.Load(t.Context(), subject.Sandbox("acme", id))
			require.NoError(t, err)
			// The last event alone, as a service that has just begun hears of it: nothing comes that would put it right later.
			p, err := view.New(t.Context(), f.JS, &lagging{Log: log, loads: loads}, slog.New(slog.DiscardHandler))
			require.NoError(t, err)
			require.NoError(t, p.Apply(t.Context(), h.Events[len(h.Events)-1]))
		}
		require.True(t, stored(t, kv, want), "behind %d loads that lag", loads)
	}
}
