package budget_test

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/services/usage/internal/budget"
)

var december = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

// till is what tenants' months cost, in whole units of the currency. Safe for concurrent use.
type till struct {
	mu    sync.Mutex
	costs map[string]int64
	// broken: it cannot say.
	broken map[string]bool
}

func (c *till) set(id string, period time.Time, units int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.costs[id+period.Format("2006-01")] = units
}

func (c *till) Of(_ context.Context, id, _ string, periods ...time.Time) ([]budget.Cost, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken[id] {
		return nil, errors.New("out of reach")
	}
	var all []budget.Cost
	for _, p := range periods {
		nanos := new(big.Int).Mul(big.NewInt(c.costs[id+p.Format("2006-01")]), big.NewInt(1_000_000_000))
		all = append(all, budget.Cost{Spent: nanos, Projected: nanos, AtSeq: 1})
	}
	return all, nil
}

type rig struct {
	*natstest.Fixture
	t    *testing.T
	log  *jslog.Log
	till *till
}

func newRig(t *testing.T, tenants ...string) *rig {
	r := &rig{Fixture: natstest.Start(t), t: t, till: &till{costs: map[string]int64{}, broken: map[string]bool{}}}
	r.log = jslog.New(r.JS)
	for _, id := range tenants {
		r.do(id, tenant.CreateTenant{})
		r.do(id, tenant.SetBudget{Amount: "100", Currency: "EUR", Thresholds: []uint32{50, 80}, Refuse: true})
	}
	return r
}

func (r *rig) do(id string, c tenant.Command) {
	r.t.Helper()
	_, err := eventlog.Execute(r.t.Context(), r.log, subject.Tenant(id), func(h eventlog.History) ([]envelope.Event, error) {
		bodies, err := tenant.Decide(tenant.Fold(h), c)
		return tenant.Events(id, ids.New(), "operator:test", december.Add(-12*time.Hour), bodies...), err
	})
	require.NoError(r.t, err)
}

// reached are all that the log says was reached: month, version and threshold, in its order.
func (r *rig) reached(id string) []string {
	r.t.Helper()
	h, err := eventlog.Current(r.t.Context(), r.log, subject.Budget(id))
	require.NoError(r.t, err)
	var all []string
	for _, e := range h.Events {
		if b, ok := e.Body.(*eventsv1.BudgetReached); ok {
			all = append(all, fmt.Sprintf("%s v%d %d%%", b.GetPeriodStart().AsTime().Format("2006-01"), b.GetVersion(), b.GetThreshold()))
		}
	}
	return all
}

func (r *rig) keeper() *budget.Keeper {
	return budget.New(r.JS, r.log, r.till, func() time.Time { return december })
}

func at(seq uint64, t time.Time) budget.Position {
	return budget.Position{Life: "a:1", Seq: seq, At: t}
}

func TestMonthsAreLookedAtUntilTheirLateFactsAreIn(t *testing.T) {
	r := newRig(t, "acme", "other")
	november := december.AddDate(0, -1, 0)
	k := r.keeper()
	require.NoError(t, k.Pass(t.Context(), at(1, december.Add(-time.Hour))))
	require.Empty(t, r.reached("acme"))
	r.till.set("acme", november, 79)
	require.NoError(t, k.Pass(t.Context(), at(2, december.Add(-time.Minute))))
	require.NoError(t, k.Pass(t.Context(), at(2, december.Add(-time.Minute))))
	require.Equal(t, []string{"2026-11 v1 50%"}, r.reached("acme"))

	// The month is over. A late fact still counts in it, and December begins at nothing.
	r.till.set("acme", november, 100)
	r.till.set("acme", december, 50)
	require.NoError(t, k.Pass(t.Context(), at(3, december)))
	require.Equal(t, []string{"2026-11 v1 50%", "2026-11 v1 80%", "2026-11 v1 100%", "2026-12 v1 50%"}, r.reached("acme"))
	require.Empty(t, r.reached("other"))

	// A budget that was changed meanwhile is looked at as it is now.
	r.do("acme", tenant.SetBudget{Amount: "50", Currency: "EUR", Thresholds: []uint32{100}})
	require.NoError(t, k.Pass(t.Context(), at(4, december.Add(time.Hour))))
	require.Equal(t, []string{"2026-11 v2 100%", "2026-12 v2 100%"}, r.reached("acme")[4:])
	r.do("acme", tenant.RemoveBudget{})
	r.till.set("acme", december, 1000)
	require.NoError(t, k.Pass(t.Context(), at(5, december.Add(time.Hour))))
	require.Len(t, r.reached("acme"), 6)
}

func TestATenantThatCannotBeLookedAtKeepsNobodyWaiting(t *testing.T) {
	r := newRig(t, "acme", "other")
	r.till.broken["acme"] = true
	for _, id := range []string{"acme", "other"} {
		r.till.set(id, december, 60)
	}
	k := r.keeper()
	require.ErrorContains(t, k.Pass(t.Context(), at(1, december)), "acme")
	require.Empty(t, r.reached("acme"))
	require.Equal(t, []string{"2026-12 v1 50%"}, r.reached("other"))
	r.till.broken["acme"] = false
	require.NoError(t, k.Pass(t.Context(), at(1, december)))
	require.Equal(t, []string{"2026-12 v1 50%"}, r.reached("acme"))
}

// A log that lost its end has other events under the sequences that were read already.
func TestALogThatLostItsEndIsReadAnew(t *testing.T) {
	r := newRig(t, "acme")
	r.till.set("late", december, 60)
	k := r.keeper()
	require.NoError(t, k.Pass(t.Context(), at(9, december)))
	r.do("late", tenant.CreateTenant{})
	r.do("late", tenant.SetBudget{Amount: "100", Currency: "EUR", Thresholds: []uint32{50}})
	require.NoError(t, k.Pass(t.Context(), at(8, december)))
	require.Equal(t, []string{"2026-12 v1 50%"}, r.reached("late"))
}

// dying is a log whose caller dies at some appends: before they are stored, or behind, when nobody hears of it.
type dying struct {
	eventlog.Log
	r *rand.Rand
}

var errDied = errors.New("the process died")

func (d *dying) Append(ctx context.Context, agg subject.Aggregate, after eventlog.Tail, events ...envelope.Event) ([]envelope.Recorded, error) {
	switch d.r.IntN(4) {
	case 0:
		return nil, errDied
	case 1:
		_, _ = d.Log.Append(ctx, agg, after, events...)
		return nil, errDied
	}
	return d.Log.Append(ctx, agg, after, events...)
}

// Several services look at the same budgets while costs grow, budgets are changed and services die around their appends. Each threshold of
// a version and month is in the log once at most, and in the end every one that was reached is.
func TestEachThresholdIsRecordedOnceByManyThatDie(t *testing.T) {
	const services, rounds = 4, 40
	tenants := []string{"acme", "beta", "gamma"}
	r := newRig(t, tenants...)
	var wg sync.WaitGroup
	for i := range services {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 67))
			log := &dying{r.log, rng}
			k := budget.New(r.JS, log, r.till, time.Now)
			for range rounds {
				if err := k.Pass(t.Context(), at(1, december)); err != nil {
					// Whoever comes next knows nothing.
					k = budget.New(r.JS, log, r.till, time.Now)
				}
			}
		})
	}
	for step := range int64(rounds) {
		for i, id := range tenants {
			r.till.set(id, december, step*3)
			if step%15 == 14 && i == 0 {
				r.do(id, tenant.SetBudget{Amount: fmt.Sprint(100 + step), Currency: "EUR", Thresholds: []uint32{10, 50, 80}, Refuse: true})
			}
		}
		require.NoError(t, r.keeper().Pass(t.Context(), at(1, december)))
	}
	wg.Wait()
	for _, id := range tenants {
		all := r.reached(id)
		seen := map[string]bool{}
		for _, x := range all {
			require.False(t, seen[x], "%s: %s twice in %v", id, x, all)
			seen[x] = true
		}
	}
	require.Equal(t, []string{"2026-12 v1 50%", "2026-12 v1 80%", "2026-12 v1 100%"}, r.reached("beta"))
	require.Contains(t, r.reached("acme"), "2026-12 v3 80%", "of the last version, 129")
	require.NotContains(t, r.reached("acme"), "2026-12 v3 100%", "117 were spent")
}
