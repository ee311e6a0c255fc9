package app_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/quota"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	quotas "github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/app"
)

// A scheduler that dies between what it has taken of the quota and the create keeps nothing for ever: the repeated command finds it
// taken, and where no command comes any more the sweep gives it back.
func TestAQuotaTakenByAKilledSchedulerIsGivenBack(t *testing.T) {
	one := quotaOf(quotas.Sandboxes, 1)
	w := newWorld(t)
	id, lost := ids.New(), ids.New()
	p := w.startUntil("before SandboxRequested", one)
	w.send(createCommand(id, nil))
	require.Eventually(t, p.hit.Load, patience, tick)
	p.kill()
	p = w.start(one)
	w.await(id, sandbox.Ready)
	require.Equal(t, string(quotas.Sandboxes), w.outcome(w.send(createCommand(ids.New(), nil))).GetError().GetQuota())
	w.send(destroyCommand(id))
	w.await(id, sandbox.Destroyed)
	p.kill()

	p = w.startUntil("before SandboxRequested", one)
	w.send(createCommand(lost, nil))
	require.Eventually(t, p.hit.Load, patience, tick)
	p.kill()
	stream, err := w.f.JS.Stream(t.Context(), topology.StreamCommands)
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context()))
	w.start(one)
	require.Equal(t, string(fault.ReasonQuota), w.outcome(w.send(createCommand(ids.New(), nil))).GetError().GetReason(), "its command may still come")
	w.ahead.Store(int64(time.Hour))
	require.Eventually(t, func() bool {
		used, err := quota.Used(t.Context(), w.f.JS, tenant)
		return err == nil && used[quotas.Sandboxes] == 0
	}, patience, tick)
	require.Nil(t, w.outcome(w.send(createCommand(ids.New(), nil))).GetError())
}

// A command that is repeated takes what it has taken, not more; a refused create is no create of its minute.
func TestCreatesAMinuteAreThoseThatWereAccepted(t *testing.T) {
	w := newWorld(t)
	w.start(func(c *app.Config) { c.Quotas = quotas.Quotas{quotas.Creates: 3, quotas.Sandboxes: 2} })
	create := func() *commandsv1.Outcome { return w.outcome(w.send(createCommand(ids.New(), nil))) }
	id := w.create()
	w.create()
	for range 5 {
		require.Equal(t, "sandboxes", create().GetError().GetQuota())
	}
	w.send(destroyCommand(id))
	w.await(id, sandbox.Destroyed)
	id = w.create()
	w.send(destroyCommand(id))
	w.await(id, sandbox.Destroyed)
	out := create().GetError()
	require.Equal(t, "creates_per_minute", out.GetQuota())
	require.Positive(t, out.GetRetryAfterSeconds())
	require.LessOrEqual(t, out.GetRetryAfterSeconds(), int32(61))
	w.ahead.Store(int64(time.Duration(out.GetRetryAfterSeconds()) * time.Second))
	require.Nil(t, create().GetError(), "whoever waits as long as it was told gets in")
}
