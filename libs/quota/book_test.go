package quota_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/quota"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
)

// What is recorded of a budget holds for who admits within the two seconds that a page of the book is believed.
func TestABookRefusesWhereABudgetIsUsedUp(t *testing.T) {
	f := natstest.Start(t)
	log := jslog.New(f.JS)
	do := func(c tenant.Command) {
		t.Helper()
		_, err := eventlog.Execute(t.Context(), log, subject.Tenant("acme"), func(h eventlog.History) ([]envelope.Event, error) {
			bodies, err := tenant.Decide(tenant.Fold(h), c)
			return tenant.Events("acme", ids.New(), "operator:test", time.Now(), bodies...), err
		})
		require.NoError(t, err)
	}
	b := quota.NewBook(log, nil)
	// within waits for what the book says to change, at most for the time that its pages are believed and as long as a slow machine needs.
	within := func(refused bool) {
		t.Helper()
		began := time.Now()
		for fault.Is(b.Admit(t.Context(), "acme"), fault.ReasonBudgetExhausted) != refused {
			require.Less(t, time.Since(began), 30*time.Second)
		}
	}
	require.NoError(t, b.Admit(t.Context(), "acme"), "there is no such tenant, and no budget")
	do(tenant.CreateTenant{})
	do(tenant.SetBudget{Amount: "1", Currency: "EUR", Thresholds: []uint32{50}, Refuse: true})
	period, end := tenant.Period(time.Now())
	acme, err := eventlog.Current(t.Context(), log, subject.Tenant("acme"))
	require.NoError(t, err)
	reached := tenant.FoldBudget(tenant.Fold(acme).Budget, nil).Reach(tenant.ReachBudget{Version: 1, Period: period, Spent: big.NewInt(0), Projected: big.NewInt(1_000_000_000)})
	_, err = log.Append(t.Context(), subject.Budget("acme"), eventlog.Tail{}, tenant.BudgetEvents("acme", "service:usage", time.Now(), reached...)...)
	require.NoError(t, err)
	within(true)
	refused := fault.From(b.Admit(t.Context(), "acme"))
	require.InDelta(t, time.Until(end).Seconds(), refused.RetryAfter.Seconds(), 60)
	require.NoError(t, b.Admit(t.Context(), "other"))
	do(tenant.SetBudget{Amount: "2", Currency: "EUR", Thresholds: []uint32{50}, Refuse: true})
	within(false)
}
