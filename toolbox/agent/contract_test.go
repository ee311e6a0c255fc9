package agent_test

import (
	"testing"

	"github.com/sandtrail/sandtrail/toolbox/agent/agenttest"
	"github.com/sandtrail/sandtrail/toolbox/toolboxtest"
)

func TestAgentKeepsTheContractAsACommonProcess(t *testing.T) {
	b := agenttest.Host(t)
	toolboxtest.RunClient(t, b.Client)
	b.Wait(t)
}

func TestTerminalsOfAnAgentThatIsACommonProcess(t *testing.T) {
	toolboxtest.RunTerminal(t, agenttest.Host(t).Client)
}

func TestWatchersOfAnAgentThatIsACommonProcess(t *testing.T) {
	toolboxtest.RunWatch(t, agenttest.Host(t).Client)
}
