package app_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
)

// A worker may hear of a sandbox before the replica that it reads shows it. It asks again, and sets nothing aside.
func TestACommandAheadOfItsEventWaitsForIt(t *testing.T) {
	w := newWorld(t)
	w.start()
	id := ids.New()
	data, err := proto.Marshal(&commandsv1.WorkerCommand{
		CommandId: ids.New(), TenantId: tenant, SandboxId: id,
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
	require.Eventually(t, func() bool {
		info, err := commands.Info(t.Context())
		return err == nil && info.State.Msgs == 0
	}, patience, tick)
	dead, err := w.f.JS.Stream(t.Context(), topology.StreamDead)
	require.NoError(t, err)
	require.Zero(t, dead.CachedInfo().State.Msgs)
}
