package tenant

import (
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/metering"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

const (
	// MaxThresholds bounds the thresholds of a budget, MaxThreshold each of them, in percent.
	MaxThresholds = 16
	MaxThreshold  = 1000
	// whole is the threshold at which a budget that refuses does so.
	whole = 100
)

// currency as the price list has it.
var currency = regexp.MustCompile(`^[A-Z]{3}$`)

// Budget is what a tenant's months may cost. The zero Budget is none.
type Budget struct {
	// Version is 1 for the tenant's first budget and one more for each change; it goes on behind one that was removed.
	Version uint32
	// Nanos are billionths of the currency for each month, UTC.
	Nanos    uint64
	Currency string
	// Thresholds are in percent of the amount, ascending.
	Thresholds []uint32
	// Refuse: new work is refused once all of it is reached.
	Refuse bool
	Note   string
	// Since is when this version was set: months that were over by then are not its own.
	Since time.Time
}

// BudgetState is a budget and what of it was reached.
type BudgetState struct {
	Budget
	// Reached are the thresholds of this version that were recorded, in the order of the log.
	Reached []Reached
}

// FoldBudget is a tenant's budget with what its budgets reached, by the events of subject.Budget. What another version reached is left out.
func FoldBudget(b Budget, events []envelope.Recorded) BudgetState {
	s := BudgetState{Budget: b}
	for _, e := range events {
		r, ok := e.Body.(*eventsv1.BudgetReached)
		if !ok || !b.Set() || r.GetVersion() != b.Version {
			continue
		}
		s.Reached = append(s.Reached, Reached{
			Period: timeOf(r.GetPeriodStart()), Threshold: r.GetThreshold(), At: e.Time, Spent: r.GetSpent(), Projected: r.GetProjected(), AtSeq: r.GetAtSequence(),
		})
	}
	return s
}

// Reached is a threshold of a month that was recorded.
type Reached struct {
	// Period is the first moment of the month, UTC.
	Period    time.Time
	Threshold uint32
	// At is when it was recorded. Spent and Projected are amounts as its event has them, AtSeq up to where they were added up.
	At               time.Time
	Spent, Projected string
	AtSeq            uint64
}

// Set reports whether there is a budget.
func (b Budget) Set() bool { return b.Nanos > 0 }

// Period is the month, UTC, that a moment lies in: its first moment, and that of the next one.
func Period(at time.Time) (from, to time.Time) {
	y, m, _ := at.UTC().Date()
	from = time.Date(y, m, 1, 0, 0, 0, 0, time.UTC)
	return from, from.AddDate(0, 1, 0)
}

// Has reports whether a threshold of a month was recorded.
func (b BudgetState) Has(period time.Time, threshold uint32) bool {
	return slices.ContainsFunc(b.Reached, func(r Reached) bool { return r.Threshold == threshold && r.Period.Equal(period) })
}

// Refuses reports whether new work is refused at now, and until when.
func (b BudgetState) Refuses(now time.Time) (until time.Time, refuses bool) {
	from, to := Period(now)
	return to, b.Set() && b.Refuse && b.Has(from, whole)
}

// Admit refuses new work of a tenant at now: fault.ResourceExhausted, ReasonBudgetExhausted, to be tried again when the month ends.
func (b BudgetState) Admit(id string, now time.Time) error {
	until, refuses := b.Refuses(now)
	if !refuses {
		return nil
	}
	return fault.Newf(fault.ResourceExhausted, fault.ReasonBudgetExhausted, "tenant %s has used up its budget of %s %s for %s; it ends at %s, or when it is raised or removed",
		id, b.Amount(), b.Currency, until.AddDate(0, -1, 0).Format("2006-01"), until.Format(time.RFC3339)).WithRetry(until.Sub(now))
}

// Amount is that of the budget as a decimal.
func (b Budget) Amount() string { return metering.FormatNanos(new(big.Int).SetUint64(b.Nanos)) }

// SetBudget gives a tenant that is there a budget, in place of one that it has. With Refuse all of the amount is a threshold, named or not.
type SetBudget struct {
	// Amount is a decimal of at most nine places, above 0, for each month.
	Amount, Currency string
	// Thresholds are 1 to MaxThreshold percent, in any order: at least one, at most MaxThresholds.
	Thresholds []uint32
	Refuse     bool
	Note       string
}

func (c SetBudget) decide(t Tenant) ([]proto.Message, error) {
	if !t.Exists() {
		return nil, notThere(t.ID)
	}
	if err := text("note", c.Note, MaxNote); err != nil {
		return nil, err
	}
	nanos, err := metering.ParseNanos(c.Amount)
	if err != nil || nanos == 0 {
		return nil, invalid("amount", "must be a decimal above 0, of at most nine places")
	}
	if !currency.MatchString(c.Currency) {
		return nil, invalid("currency", "must be three letters, such as EUR")
	}
	thresholds := slices.Clone(c.Thresholds)
	if c.Refuse {
		thresholds = append(thresholds, whole)
	}
	slices.Sort(thresholds)
	thresholds = slices.Compact(thresholds)
	if len(thresholds) == 0 || len(thresholds) > MaxThresholds || thresholds[0] == 0 || thresholds[len(thresholds)-1] > MaxThreshold {
		return nil, invalid("thresholds", fmt.Sprintf("must be 1 to %d of 1 to %d percent", MaxThresholds, MaxThreshold))
	}
	b := t.Budget
	if b.Nanos == nanos && b.Currency == c.Currency && b.Refuse == c.Refuse && slices.Equal(b.Thresholds, thresholds) {
		return nil, nil
	}
	return []proto.Message{&eventsv1.BudgetSet{
		Version: b.Version + 1, Amount: metering.FormatNanos(new(big.Int).SetUint64(nanos)), Currency: c.Currency, Thresholds: thresholds, Refuse: c.Refuse, Note: c.Note,
	}}, nil
}

// RemoveBudget takes a tenant's budget away, and with it what it refuses.
type RemoveBudget struct{ Note string }

func (c RemoveBudget) decide(t Tenant) ([]proto.Message, error) {
	if !t.Exists() {
		return nil, notThere(t.ID)
	}
	if err := text("note", c.Note, MaxNote); err != nil || !t.Budget.Set() {
		return nil, err
	}
	return []proto.Message{&eventsv1.BudgetRemoved{Version: t.Budget.Version, Note: c.Note}}, nil
}

// ReachBudget says what a month of a tenant costs, as of a sequence of the log. It records each threshold that this reaches and that was not
// recorded before. Of another version than the budget's it decides nothing, as of a month that was over when that was set.
type ReachBudget struct {
	Version uint32
	// Period is the first moment of the month, UTC.
	Period time.Time
	// Spent and Projected are billionths of the budget's currency.
	Spent, Projected *big.Int
	AtSeq            uint64
}

// Reach are the thresholds that c reaches, as they are recorded.
func (b BudgetState) Reach(c ReachBudget) []proto.Message {
	from, to := Period(c.Period)
	if !b.Set() || b.Version != c.Version || !to.After(b.Since) {
		return nil
	}
	var all []proto.Message
	for _, threshold := range b.Thresholds {
		if b.Has(from, threshold) || !b.reaches(c.Projected, threshold) {
			continue
		}
		all = append(all, &eventsv1.BudgetReached{
			Version: b.Version, PeriodStart: timestamppb.New(from), PeriodEnd: timestamppb.New(to), Threshold: threshold, Amount: b.Amount(), Currency: b.Currency,
			Spent: metering.FormatNanos(c.Spent), Projected: metering.FormatNanos(c.Projected), AtSequence: c.AtSeq, Refuses: b.Refuse && threshold == whole,
		})
	}
	return all
}

// reaches compares without a division: nothing is rounded.
func (b Budget) reaches(nanos *big.Int, threshold uint32) bool {
	spent := new(big.Int).Mul(nanos, big.NewInt(whole))
	amount := new(big.Int).SetUint64(b.Nanos)
	return spent.Cmp(amount.Mul(amount, big.NewInt(int64(threshold)))) >= 0
}

// BudgetEvents are what Reach told, as they are appended to subject.Budget. Their ids follow from tenant, version, month and threshold alone: the fact
// has one id whoever finds it, when, and how often.
func BudgetEvents(tenant, actor string, at time.Time, bodies ...proto.Message) []envelope.Event {
	var all []envelope.Event
	for _, b := range bodies {
		r, ok := b.(*eventsv1.BudgetReached)
		if !ok {
			continue
		}
		cause := ids.Derive("budget", tenant, strconv.FormatUint(uint64(r.GetVersion()), 10), r.GetPeriodStart().AsTime().Format(time.RFC3339),
			strconv.FormatUint(uint64(r.GetThreshold()), 10))
		all = append(all, Events(tenant, cause, actor, at, b)...)
	}
	return all
}

// evolve is the budget behind one of the events of budgets. The state before is left as it is.
func (b Budget) evolve(e envelope.Recorded) Budget {
	switch body := e.Body.(type) {
	case *eventsv1.BudgetSet:
		// An amount that this version cannot read bounds nothing here.
		nanos, err := metering.ParseNanos(body.GetAmount())
		if err != nil {
			nanos = 0
		}
		return Budget{
			Version: body.GetVersion(), Nanos: nanos, Currency: body.GetCurrency(), Thresholds: body.GetThresholds(), Refuse: body.GetRefuse(),
			Note: body.GetNote(), Since: e.Time,
		}
	case *eventsv1.BudgetRemoved:
		return Budget{Version: b.Version}
	default:
	}
	return b
}
