package keeper_test

import (
	"testing"

	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/keeper/keepertest"
	"github.com/sandtrail/sandtrail/toolbox/toolboxtest"
)

func TestKeeperKeepsTheContract(t *testing.T) {
	b := keepertest.Start(t)
	toolboxtest.Run(t, client.KeeperDialer(b.State, b.Spec.SandboxID))
}
