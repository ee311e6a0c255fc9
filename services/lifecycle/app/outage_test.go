package app_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/sandbox"
)

func TestARestartOfTheBrokerLosesNothingThatWasAccepted(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: waits for a reconnect")
	}
	w := newWorld(t)
	w.start()
	var all []string
	for range 10 {
		id := ids.New()
		w.send(createCommand(id, nil))
		all = append(all, id)
	}
	w.f.Restart()
	for _, id := range all {
		w.await(id, sandbox.Ready)
		w.send(destroyCommand(id))
	}
	w.f.Restart()
	for _, id := range all {
		w.await(id, sandbox.Destroyed)
	}
	require.Empty(t, w.host.ids())
	for _, id := range all {
		require.Equal(t, 1, w.host.made[id])
		require.Equal(t, 1, count(w.types(id), "SandboxReady"))
	}
	require.Eventually(t, func() bool { return w.places("worker."+natstest.Worker) == "" }, patience, tick)
}
