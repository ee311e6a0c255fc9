package tenant_test

import (
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/tenant"
)

var november, december = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

func ten(refuse bool) tenant.SetBudget {
	return tenant.SetBudget{Amount: "10", Currency: "EUR", Thresholds: []uint32{80, 50, 80}, Refuse: refuse}
}

// reach is a month at so many billionths, all of them spent.
func reach(version uint32, period time.Time, nanos int64) tenant.ReachBudget {
	return tenant.ReachBudget{Version: version, Period: period, Spent: big.NewInt(nanos), Projected: big.NewInt(nanos), AtSeq: 7}
}

// purse is a tenant and the events of its budgets.
type purse struct {
	tenant.Tenant
	events []envelope.Recorded
}

func (p purse) state() tenant.BudgetState { return tenant.FoldBudget(p.Budget, p.events) }

// does is the purse behind a command, or behind what a month costs, and what that led to.
func (p purse) does(t require.TestingT, at time.Time, c tenant.Command) (purse, []proto.Message) {
	bodies, err := tenant.Decide(p.Tenant, c)
	require.NoError(t, err)
	for _, b := range bodies {
		p.Tenant = p.Evolve(envelope.Recorded{Meta: envelope.Meta{Time: at}, Seq: p.Seq + 1, Body: b})
	}
	return p, bodies
}

func (p purse) reaches(at time.Time, c tenant.ReachBudget) (purse, []proto.Message) {
	bodies := p.state().Reach(c)
	for _, b := range bodies {
		p.events = append(slices.Clone(p.events), envelope.Recorded{Meta: envelope.Meta{Time: at}, Seq: uint64(len(p.events)) + 1, Body: b})
	}
	return p, bodies
}

func newPurse(t *testing.T) purse {
	s, _ := created(t)
	return purse{Tenant: s}
}

func TestABudgetRefusesFromAllOfItUntilTheMonthEnds(t *testing.T) {
	s := newPurse(t)
	s, bodies := s.does(t, day, ten(true))
	require.Equal(t, []uint32{50, 80, 100}, bodies[0].(*eventsv1.BudgetSet).GetThresholds(), "who refuses does so at all of it")
	_, again := s.does(t, day, ten(true))
	require.Empty(t, again, "a command that was carried out already decides nothing")

	_, none := s.reaches(day, reach(1, november, 4_999_999_999))
	require.Empty(t, none, "a billionth is missing")
	s, bodies = s.reaches(day, reach(1, november, 5_000_000_000))
	require.Len(t, bodies, 1)
	require.NoError(t, s.state().Admit("acme", day))
	s, bodies = s.reaches(day, reach(1, november, 12_000_000_001))
	require.Len(t, bodies, 2, "80 and 100")
	r := bodies[1].(*eventsv1.BudgetReached)
	require.True(t, r.GetRefuses())
	require.False(t, bodies[0].(*eventsv1.BudgetReached).GetRefuses())
	require.Equal(t, []string{"10", "12.000000001"}, []string{r.GetAmount(), r.GetSpent()})
	require.EqualValues(t, 7, r.GetAtSequence())

	err := fault.From(s.state().Admit("acme", day))
	require.Equal(t, fault.ReasonBudgetExhausted, err.Reason)
	require.Equal(t, fault.ResourceExhausted, err.Code)
	require.Equal(t, december.Sub(day), err.RetryAfter)
	require.Error(t, s.state().Admit("acme", december.Add(-time.Nanosecond)))
	require.NoError(t, s.state().Admit("acme", december), "the month is over")

	raised, _ := s.does(t, day, tenant.SetBudget{Amount: "20", Currency: "EUR", Thresholds: []uint32{50}, Refuse: true})
	require.NoError(t, raised.state().Admit("acme", day))
	_, old := raised.reaches(day, reach(1, november, 1<<60))
	require.Empty(t, old, "what was found for the version before says nothing about this one")
	_, bodies = raised.reaches(day, reach(2, november, 12_000_000_001))
	require.Len(t, bodies, 1, "50 % of the new one")
	watched, _ := s.does(t, day, ten(false))
	require.NoError(t, watched.state().Admit("acme", day))
	removed, bodies := s.does(t, day, tenant.RemoveBudget{})
	require.Len(t, bodies, 1)
	require.NoError(t, removed.state().Admit("acme", day))
	_, again = removed.does(t, day, tenant.RemoveBudget{})
	require.Empty(t, again)
	anew, _ := removed.does(t, day, ten(true))
	require.EqualValues(t, 2, anew.Budget.Version, "versions go on: an id says one fact")
}

func TestAMonthThatWasOverWhenTheBudgetWasSetIsNotItsOwn(t *testing.T) {
	s := newPurse(t)
	s, _ = s.does(t, december, ten(true))
	_, bodies := s.reaches(december, reach(1, november, 1<<60))
	require.Empty(t, bodies)
	// A late fact of a month that the budget has seen is told, and refuses nothing any more.
	s = newPurse(t)
	s, _ = s.does(t, december.Add(-time.Second), ten(true))
	s, bodies = s.reaches(december.Add(time.Hour), reach(1, november, 10_000_000_000))
	require.Len(t, bodies, 3)
	require.NoError(t, s.state().Admit("acme", december.Add(time.Hour)))
}

func TestRefusedBudgets(t *testing.T) {
	s, _ := created(t)
	change := func(f func(*tenant.SetBudget)) tenant.SetBudget {
		c := ten(false)
		f(&c)
		return c
	}
	for name, c := range map[string]struct {
		state   tenant.Tenant
		command tenant.Command
		reason  fault.Reason
	}{
		"no tenant":         {tenant.Tenant{ID: "x"}, ten(false), fault.ReasonTenantNotFound},
		"nothing to remove": {tenant.Tenant{ID: "x"}, tenant.RemoveBudget{}, fault.ReasonTenantNotFound},
		"no amount":         {s, change(func(c *tenant.SetBudget) { c.Amount = "" }), fault.ReasonValidation},
		"zero":              {s, change(func(c *tenant.SetBudget) { c.Amount = "0.000000000" }), fault.ReasonValidation},
		"negative":          {s, change(func(c *tenant.SetBudget) { c.Amount = "-1" }), fault.ReasonValidation},
		"ten places":        {s, change(func(c *tenant.SetBudget) { c.Amount = "0.0000000001" }), fault.ReasonValidation},
		"currency":          {s, change(func(c *tenant.SetBudget) { c.Currency = "eur" }), fault.ReasonValidation},
		"no threshold":      {s, change(func(c *tenant.SetBudget) { c.Thresholds = nil }), fault.ReasonValidation},
		"nothing as one":    {s, change(func(c *tenant.SetBudget) { c.Thresholds = []uint32{0} }), fault.ReasonValidation},
		"too large a one":   {s, change(func(c *tenant.SetBudget) { c.Thresholds = []uint32{tenant.MaxThreshold + 1} }), fault.ReasonValidation},
		"too many thresholds": {s, change(func(c *tenant.SetBudget) {
			c.Thresholds = []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}
		}), fault.ReasonValidation},
		"long note": {s, change(func(c *tenant.SetBudget) { c.Note = strings.Repeat("x", tenant.MaxNote+1) }), fault.ReasonValidation},
	} {
		bodies, err := tenant.Decide(c.state, c.command)
		require.True(t, fault.Is(err, c.reason), "%s: %v", name, err)
		require.Empty(t, bodies)
	}
}

// Whatever is commanded in whatever order: a threshold of a month and version is recorded at most once, never before it is reached, under an
// id of its own; and new work is refused exactly where the latest version says so and all of it was reached in the month.
func TestThresholdsAreRecordedOnceWhateverHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := purse{Tenant: tenant.Tenant{ID: "acme"}.Evolve(envelope.Recorded{Meta: envelope.Meta{Time: november}, Seq: 1, Body: &eventsv1.TenantCreated{}})}
		now := november
		seen := map[string]bool{}
		full := map[time.Time]bool{}
		amount, refuse := int64(0), false
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(20*24*time.Hour)).Draw(t, "later")))
			period, _ := tenant.Period(now.AddDate(0, -rapid.IntRange(0, 1).Draw(t, "months ago"), -now.Day()+1))
			var reached tenant.ReachBudget
			var bodies []proto.Message
			nanos := rapid.Int64Range(0, 40).Draw(t, "nanos")
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				set := tenant.SetBudget{Amount: "0.00000001", Currency: "EUR", Thresholds: []uint32{50, 150}, Refuse: rapid.Bool().Draw(t, "refuse")}
				if rapid.Bool().Draw(t, "large") {
					set.Amount = "0.00000002"
				}
				s, bodies = s.does(t, now, set)
			case 1:
				s, bodies = s.does(t, now, tenant.RemoveBudget{})
			default:
				reached = reach(uint32(max(0, int(s.Budget.Version)-rapid.IntRange(0, 1).Draw(t, "stale"))), period, nanos)
				s, bodies = s.reaches(now, reached)
			}
			events := tenant.BudgetEvents("acme", "x", now, bodies...)
			for i, b := range bodies {
				switch b := b.(type) {
				case *eventsv1.BudgetSet:
					amount, refuse = 10, b.GetRefuse()
					if b.GetAmount() == "0.00000002" {
						amount = 20
					}
					clear(full)
				case *eventsv1.BudgetRemoved:
					amount, refuse = 0, false
				case *eventsv1.BudgetReached:
					require.False(t, seen[events[i].ID], "recorded twice")
					seen[events[i].ID] = true
					require.GreaterOrEqual(t, nanos*100, amount*int64(b.GetThreshold()))
					full[b.GetPeriodStart().AsTime()] = full[b.GetPeriodStart().AsTime()] || b.GetThreshold() == 100
				}
			}
			month, end := tenant.Period(now)
			until, refuses := s.state().Refuses(now)
			require.Equal(t, refuse && full[month], refuses)
			require.Equal(t, end, until)
			if s.Budget.Set() && reached.Version == s.Budget.Version && end.After(s.Budget.Since) && reached.Period.Equal(month) {
				for _, threshold := range s.Budget.Thresholds {
					require.True(t, s.state().Has(month, threshold) || nanos*100 < amount*int64(threshold), "reached and not recorded")
				}
			}
		}
	})
}

// The id says tenant, version, month and threshold, and nothing that two who find it may disagree on.
func TestTheIdOfAReachedThreshold(t *testing.T) {
	s := newPurse(t)
	s, _ = s.does(t, day, ten(true))
	_, one := s.reaches(day, reach(1, november, 10_000_000_000))
	_, two := s.reaches(day, tenant.ReachBudget{Version: 1, Period: november, Spent: new(big.Int), Projected: big.NewInt(1 << 60), AtSeq: 99})
	id := func(tenantID string, at time.Time, bodies ...proto.Message) []string {
		var all []string
		for _, e := range tenant.BudgetEvents(tenantID, "x", at, bodies...) {
			require.True(t, ids.Valid(e.ID))
			all = append(all, e.ID)
		}
		return all
	}
	a := id("acme", day, one...)
	require.Len(t, a, 3)
	require.Equal(t, a, id("acme", day.Add(time.Hour), two...))
	require.Equal(t, a[2:], id("acme", day, one[2]), "also when it is found alone")
	require.NotEqual(t, a, id("other", day, one...))
	slices.Sort(a)
	require.Len(t, slices.Compact(a), 3)
}
