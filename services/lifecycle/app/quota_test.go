package app_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/quota"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	quotas "github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
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

// Of a tenant whose budget is used up nothing begins: no create and no start of what was stopped; what runs does so on, and may be stopped and
// destroyed. Once the budget is raised, or the month over, they are accepted again.
func TestATenantWhoseBudgetIsUsedUpBeginsNothing(t *testing.T) {
	w := newWorld(t)
	w.start()
	stopped, running := w.create(), w.create()
	require.Empty(t, w.refused(stopCommand(stopped)))
	w.await(stopped, sandbox.Stopped)
	do := func(c quotas.Command) {
		t.Helper()
		_, err := eventlog.Execute(t.Context(), w.log, subject.Tenant(tenant), func(h eventlog.History) ([]envelope.Event, error) {
			bodies, err := quotas.Decide(quotas.Fold(h), c)
			return quotas.Events(tenant, ids.New(), "operator:test", time.Now(), bodies...), err
		})
		require.NoError(t, err)
	}
	do(quotas.CreateTenant{})
	do(quotas.SetBudget{Amount: "1", Currency: "EUR", Thresholds: []uint32{50}, Refuse: true})
	period, end := quotas.Period(time.Now())
	acme, err := eventlog.Current(t.Context(), w.log, subject.Tenant(tenant))
	require.NoError(t, err)
	reached := quotas.FoldBudget(quotas.Fold(acme).Budget, nil).Reach(quotas.ReachBudget{Version: 1, Period: period, Spent: big.NewInt(0), Projected: big.NewInt(1_000_000_000)})
	_, err = w.log.Append(t.Context(), subject.Budget(tenant), eventlog.Tail{}, quotas.BudgetEvents(tenant, "service:usage", time.Now(), reached...)...)
	require.NoError(t, err)
	var out *commonv1.ErrorDetail
	require.Eventually(t, func() bool {
		out = w.outcome(w.send(createCommand(ids.New(), nil))).GetError()
		return out != nil
	}, patience, tick)
	require.Equal(t, string(fault.ReasonBudgetExhausted), out.GetReason())
	require.InDelta(t, time.Until(end).Seconds(), float64(out.GetRetryAfterSeconds()), 60)
	require.Equal(t, fault.ReasonBudgetExhausted, w.refused(startCommand(stopped)))
	used := w.used()
	require.Equal(t, fault.ReasonBudgetExhausted, w.refused(createCommand(ids.New(), nil)))
	require.Equal(t, used, w.used(), "a refused create takes nothing of a quota")
	require.Empty(t, w.refused(stopCommand(running)))
	w.await(running, sandbox.Stopped)
	require.Empty(t, w.refused(destroyCommand(running)))

	do(quotas.SetBudget{Amount: "2", Currency: "EUR", Thresholds: []uint32{50}, Refuse: true})
	require.Eventually(t, func() bool { return w.refused(startCommand(stopped)) == "" }, patience, tick)
	w.await(stopped, sandbox.Ready)
}
