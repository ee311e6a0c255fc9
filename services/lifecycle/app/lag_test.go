package app_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
)

// settled says that every command was carried out and none was set aside.
func (w *world) settled() {
	w.t.Helper()
	commands, err := w.f.JS.Stream(w.t.Context(), topology.StreamCommands)
	require.NoError(w.t, err)
	require.Eventually(w.t, func() bool {
		info, err := commands.Info(w.t.Context())
		return err == nil && info.State.Msgs == 0
	}, patience, tick)
	dead, err := w.f.JS.Stream(w.t.Context(), topology.StreamDead)
	require.NoError(w.t, err)
	require.Zero(w.t, dead.CachedInfo().State.Msgs)
}

// A worker may hear of a sandbox before the replica that it reads shows it. It waits for the event that its command names, and sets nothing
// aside.
func TestACommandAheadOfItsEventWaitsForIt(t *testing.T) {
	w := newWorld(t)
	w.start()
	id := ids.New()
	events, err := w.f.JS.Stream(t.Context(), topology.StreamEvents)
	require.NoError(t, err)
	data, err := proto.Marshal(&commandsv1.WorkerCommand{
		CommandId: ids.New(), TenantId: tenant, SandboxId: id, Sequence: events.CachedInfo().State.LastSeq + 1,
		Command: &commandsv1.WorkerCommand_Materialise{Materialise: &commandsv1.Materialise{}},
	})
	require.NoError(t, err)
	ack, err := w.f.JS.Publish(t.Context(), subject.WorkerCommand(natstest.Worker, tenant, id), data)
	require.NoError(t, err)
	commands, err := w.f.JS.Stream(t.Context(), topology.StreamCommands)
	require.NoError(t, err)
	worker, err := commands.Consumer(t.Context(), topology.ConsumerWorker(natstest.Worker))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		info, err := worker.Info(t.Context())
		return err == nil && info.Delivered.Stream >= ack.Sequence
	}, patience, tick)

	require.Nil(t, w.outcome(w.send(createCommand(id, nil))).GetError())
	w.await(id, sandbox.Ready)
	w.settled()
}

// Who reads a replica that is behind by longer than a create and a destroy take answers and does the same as one who reads the newest.
func TestAReplicaThatLagsChangesNoDecision(t *testing.T) {
	w := newWorld(t)
	w.lag = time.Second
	w.start()
	for range 3 {
		id := ids.New()
		require.Nil(t, w.outcome(w.send(createCommand(id, nil))).GetError())
		require.Nil(t, w.outcome(w.send(destroyCommand(id))).GetError(), "a destroy right behind its create")
		w.await(id, sandbox.Destroyed)
		require.Empty(t, w.host.ids())
	}
	id := ids.New()
	require.Nil(t, w.outcome(w.send(createCommand(id, nil))).GetError())
	w.await(id, sandbox.Ready)
	require.Nil(t, w.outcome(w.send(destroyCommand(id))).GetError())
	w.await(id, sandbox.Destroyed)
	out := w.outcome(w.send(destroyCommand(ids.New())))
	require.Equal(t, string(fault.ReasonSandboxNotFound), out.GetError().GetReason(), "what never was is still not found")
	w.settled()
}
