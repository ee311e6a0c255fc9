package app_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// A tenant whose creates are not answered has only its share of them under way; another one's go through beside them, and in the end all do.
func TestATenantThatFloodsKeepsNoOtherWaiting(t *testing.T) {
	w := newWorld(t, twoTenants)
	held := make(chan struct{})
	w.peer.set(func() {
		w.peer.onCommand = func(c *commandsv1.SandboxCommand) {
			if c.GetTenantId() == "acme" {
				<-held
			}
		}
	})
	create := func(who string) error {
		_, err := w.CreateSandbox(w.as(who), &computev1.CreateSandboxRequest{Image: "python"})
		return err
	}
	// share of one tenant, and how long a create that is not answered has its turn.
	const flood, share, turn = 20, 4, 500 * time.Millisecond
	begin := time.Now()
	results := make(chan error, flood)
	var all sync.WaitGroup
	for range flood {
		all.Go(func() { results <- create("alice") })
	}
	defer all.Wait()
	w.until(func() bool { return w.peer.count("cmd.sandbox.acme.") >= share })
	require.NoError(t, create("bob"))
	under := w.peer.count("cmd.sandbox.acme.")
	require.LessOrEqual(t, under, share*(1+int(time.Since(begin)/turn)))
	close(held)
	for range flood {
		require.NoError(t, <-results)
	}
}
