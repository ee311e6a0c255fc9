package receipt

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

func TestReceiptFollowsTheLogWhateverTheOrder(t *testing.T) {
	f := natstest.Start(t)
	log := jslog.New(f.JS)
	kv, err := f.JS.KeyValue(t.Context(), topology.BucketExec)
	require.NoError(t, err)
	agg := subject.Exec("acme", ids.New(), ids.New())
	var events []envelope.Recorded
	for _, b := range []proto.Message{
		&eventsv1.ExecRequested{SandboxId: agg.Sandbox, ExecId: agg.ID, Spec: &eventsv1.ExecSpec{Command: "x"}},
		&eventsv1.ExecStarted{SandboxId: agg.Sandbox, ExecId: agg.ID, Worker: "w1"},
		&eventsv1.ExecCompleted{ExitCode: 3, Reason: "exited"},
	} {
		got, err := log.Append(t.Context(), agg, eventlog.History{Events: events}.Tail(),
			sandbox.Events(sandbox.CommandMeta{ID: ids.New(), Tenant: "acme", Time: time.Now()}, b)...)
		require.NoError(t, err)
		events = append(events, got...)
	}
	view := func() *commandsv1.ExecView {
		e, err := kv.Get(t.Context(), Key(agg))
		require.NoError(t, err)
		v := &commandsv1.ExecView{}
		require.NoError(t, proto.Unmarshal(e.Value(), v))
		return v
	}
	h, err := log.Load(t.Context(), agg)
	require.NoError(t, err)
	whole, err := sandbox.FoldExec(h)
	require.NoError(t, err)
	// In order, by a second instance meanwhile, and again from the start.
	p, q := New(log, kv), New(log, kv)
	for _, e := range []envelope.Recorded{events[0], events[1], events[2], events[0], events[1]} {
		require.NoError(t, p.Apply(t.Context(), e))
		require.NoError(t, q.Apply(t.Context(), e))
	}
	require.True(t, proto.Equal(whole.View(), view()))
	require.Equal(t, int32(3), view().GetCompleted().GetExitCode())
	// From nothing.
	require.NoError(t, kv.Purge(t.Context(), Key(agg)))
	require.NoError(t, New(log, kv).Apply(t.Context(), events[2]))
	require.True(t, proto.Equal(whole.View(), view()))
}

func TestAnEventOfALaterVersionHoldsNoReceiptUp(t *testing.T) {
	f := natstest.Start(t)
	log := jslog.New(f.JS)
	kv, err := f.JS.KeyValue(t.Context(), topology.BucketExec)
	require.NoError(t, err)
	agg := subject.Exec("acme", ids.New(), ids.New())
	events := sandbox.Events(sandbox.CommandMeta{ID: ids.New(), Tenant: "acme", Time: time.Now()},
		&eventsv1.ExecStarted{SandboxId: agg.Sandbox, ExecId: agg.ID, Worker: "w1"},
		&eventsv1.ExecLost{}, // stands for what is not known yet
		&eventsv1.ExecCompleted{ExitCode: 3, Reason: "exited"},
	)
	events[1].Type = "sandtrail.events.v1.OfAVersionToCome"
	_, err = log.Append(t.Context(), agg, eventlog.Tail{}, events...)
	require.NoError(t, err)
	h, err := log.Load(t.Context(), agg)
	require.NoError(t, err)
	require.NoError(t, New(log, kv).Apply(t.Context(), h.Events[2]))
	e, err := kv.Get(t.Context(), Key(agg))
	require.NoError(t, err)
	v := &commandsv1.ExecView{}
	require.NoError(t, proto.Unmarshal(e.Value(), v))
	require.Equal(t, int32(3), v.GetCompleted().GetExitCode())
	require.Equal(t, h.Tail().Seq, v.GetLastSequence())
	require.Equal(t, h.Tail().Digest, v.GetDigest())
}

func TestReceiptsOfWhatTheLogHasLostArePutRight(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: restarts the server twice")
	}
	f := natstest.Start(t)
	log := jslog.New(f.JS)
	kv, err := f.JS.KeyValue(t.Context(), topology.BucketExec)
	require.NoError(t, err)
	record := func(agg subject.Aggregate, b proto.Message) {
		h, err := log.Load(t.Context(), agg)
		require.NoError(t, err)
		got, err := log.Append(t.Context(), agg, h.Tail(), sandbox.Events(sandbox.CommandMeta{ID: ids.New(), Tenant: "acme", Time: time.Now()}, b)...)
		require.NoError(t, err)
		require.NoError(t, New(log, kv).Apply(t.Context(), got[0]))
	}
	kept, lost := subject.Exec("acme", ids.New(), ids.New()), subject.Exec("acme", ids.New(), ids.New())
	started := func(agg subject.Aggregate) proto.Message {
		return &eventsv1.ExecStarted{SandboxId: agg.Sandbox, ExecId: agg.ID, Worker: "w1"}
	}
	record(kept, started(kept))
	f.Lose(topology.StreamEvents, func() {
		record(kept, &eventsv1.ExecCompleted{ExitCode: 3, Reason: "exited"})
		record(lost, started(lost))
	})
	p := New(log, kv)
	for range 2 {
		require.NoError(t, p.Heal(t.Context()))
		keys, err := kv.Keys(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{Key(kept)}, keys)
	}
	e, err := kv.Get(t.Context(), Key(kept))
	require.NoError(t, err)
	v := &commandsv1.ExecView{}
	require.NoError(t, proto.Unmarshal(e.Value(), v))
	require.Equal(t, sandbox.ExecRunning, v.GetState())
}

// late shows nothing of the log the first time, as a replica does that lags.
type late struct {
	eventlog.Log
	shown bool
}

func (l *late) Load(ctx context.Context, agg subject.Aggregate) (eventlog.History, error) {
	if !l.shown {
		l.shown = true
		return eventlog.History{Aggregate: agg}, nil
	}
	return l.Log.Load(ctx, agg)
}

func TestReceiptHasTheWholePastAlsoWhereAReplicaLags(t *testing.T) {
	f := natstest.Start(t)
	log := jslog.New(f.JS)
	kv, err := f.JS.KeyValue(t.Context(), topology.BucketExec)
	require.NoError(t, err)
	agg := subject.Exec("acme", ids.New(), ids.New())
	p := New(&late{Log: log}, kv)
	var tail eventlog.Tail
	for _, b := range []proto.Message{
		&eventsv1.ExecRequested{SandboxId: agg.Sandbox, ExecId: agg.ID, Spec: &eventsv1.ExecSpec{Command: "x"}},
		&eventsv1.ExecStarted{SandboxId: agg.Sandbox, ExecId: agg.ID, Worker: "w1"},
	} {
		got, err := log.Append(t.Context(), agg, tail, sandbox.Events(sandbox.CommandMeta{ID: ids.New(), Tenant: "acme", Time: time.Now()}, b)...)
		require.NoError(t, err)
		tail = eventlog.History{Events: got}.Tail()
		require.NoError(t, p.Apply(t.Context(), got[0]))
	}
	h, err := log.Load(t.Context(), agg)
	require.NoError(t, err)
	whole, err := sandbox.FoldExec(h)
	require.NoError(t, err)
	stored, err := kv.Get(t.Context(), Key(agg))
	require.NoError(t, err)
	v := &commandsv1.ExecView{}
	require.NoError(t, proto.Unmarshal(stored.Value(), v))
	require.True(t, proto.Equal(whole.View(), v), "%s", v)
}
