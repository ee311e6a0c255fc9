package agent_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/agent/agenttest"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/keeper/keepertest"
	"github.com/sandtrail/sandtrail/toolbox/toolboxtest"
)

func init() {
	homes["gvisor"] = func(t *testing.T, more ...string) *agenttest.Box { return agenttest.GVisor(t, nil, more...) }
}

func TestAgentKeepsTheContractInGVisor(t *testing.T) {
	b := agenttest.GVisor(t, nil)
	toolboxtest.RunClient(t, b.Client)
	b.Wait(t)
}

func TestTerminalsOfAnAgentInGVisor(t *testing.T) {
	toolboxtest.RunTerminal(t, agenttest.GVisor(t, nil).Client)
}

func TestWatchersOfAnAgentInGVisor(t *testing.T) {
	toolboxtest.RunWatch(t, agenttest.GVisor(t, nil).Client)
}

func TestPortsOfAnAgentInGVisor(t *testing.T) {
	toolboxtest.RunConnect(t, agenttest.GVisor(t, nil).Client)
}

// gVisor does not shield the first process of a container from KILL: a program can end its own sandbox.
func TestAnAgentThatIsKilledEndsItsSandbox(t *testing.T) {
	b := agenttest.GVisor(t, nil)
	id := begin(t, b, "on", "sh", "-c", "echo on; sleep 600")
	s, err := b.Attach(t.Context(), &toolboxv1.Attach{ExecId: id, StdoutOffset: 3})
	require.NoError(t, err)
	defer s.Close()
	_, err = b.Client.Start(t.Context(), &toolboxv1.Start{ExecId: keepertest.NewID(), Argv: []string{"sh", "-c", "kill -9 1"}})
	if err != nil {
		require.ErrorIs(t, err, client.ErrUnavailable)
	}
	_, err = s.Recv()
	require.ErrorIs(t, err, client.ErrUnavailable, "no end is made up")
	b.Wait(t)
}
