package cli

import (
	"context"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/metering"
	"github.com/sandtrail/sandtrail/libs/permission"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
	usageapp "github.com/sandtrail/sandtrail/services/usage/app"
)

// Budget is `sandtrail budget`.
type Budget struct {
	Set  BudgetSet  `cmd:"" help:"Say what a tenant's months may cost; what reaches a threshold is an event of the tenant."`
	Show BudgetShow `cmd:"" help:"Show a tenant's budget, and what it reached."`
	Rm   BudgetRm   `cmd:"" help:"Take a tenant's budget away, and with it what it refuses."`
	Ls   BudgetLs   `cmd:"" aliases:"list" help:"List the tenants that have one."`
}

// Whose names the tenant of a budget.
type Whose struct {
	Tenant string `required:"" env:"SANDTRAIL_TENANT" placeholder:"ID" help:"The tenant."`
}

// BudgetSet is `sandtrail budget set`.
type BudgetSet struct {
	Administering
	Whose
	Amount    string   `required:"" placeholder:"N" help:"For each month, UTC: a decimal such as 250 or 0.5, of at most nine places."`
	Currency  string   `required:"" placeholder:"CUR" help:"As in the price list, such as EUR. What is priced in another one does not count."`
	Threshold []uint32 `default:"50,80,100" placeholder:"PERCENT,…" help:"At which percent of the amount an event is recorded. Default: ${default}."`
	Refuse    bool     `help:"Once all of it is reached, refuse creates, starts and execs until the month ends."`
	Note      string   `placeholder:"TEXT" help:"Why; the log keeps it for ever."`
}

// Run sets it.
func (b *BudgetSet) Run(e *Env) error {
	t, err := b.change(e, b.Tenant, tenant.SetBudget{Amount: b.Amount, Currency: b.Currency, Thresholds: b.Threshold, Refuse: b.Refuse, Note: b.Note})
	if err != nil {
		return err
	}
	return b.showBudgetOf(e, t)
}

// BudgetRm is `sandtrail budget rm`.
type BudgetRm struct {
	Administering
	Whose
	Note string `placeholder:"TEXT" help:"Why; the log keeps it for ever."`
}

// Run removes it.
func (b *BudgetRm) Run(e *Env) error {
	t, err := b.change(e, b.Tenant, tenant.RemoveBudget{Note: b.Note})
	if err != nil {
		return err
	}
	return b.showBudgetOf(e, t)
}

// BudgetShow is `sandtrail budget show`.
type BudgetShow struct {
	Log
	Whose
	Rows
	Costs bool `help:"Also what this month costs so far and what is expected of it, by ClickHouse (--clickhouse)."`
}

// Run shows it as the log tells it, with --costs also what it is compared with.
func (b *BudgetShow) Run(e *Env) error {
	if !subject.ValidTenant(b.Tenant) {
		return usagef("%q is not the id of a tenant", b.Tenant)
	}
	ctx, js, done, err := b.connect(e, permission.Operator)
	if err != nil {
		return err
	}
	defer done()
	h, err := eventlog.Current(ctx, jslog.New(js), subject.Tenant(b.Tenant))
	if err != nil {
		return ended(ctx, err)
	}
	all, err := budgetsOf(ctx, js, tenant.Fold(h))
	if err != nil {
		return ended(ctx, err)
	}
	out := all[0]
	if b.Costs && out.Version > 0 && out.Currency != "" {
		address, err := b.address()
		if err != nil {
			return err
		}
		period, _ := tenant.Period(time.Now())
		costs, err := usageapp.Costs(ctx, address, b.Tenant, out.Currency, period)
		if err != nil {
			return ended(ctx, err)
		}
		spent, projected := metering.FormatNanos(costs[0].Spent), metering.FormatNanos(costs[0].Projected)
		out.Spent, out.Projected, out.AtSequence = &spent, &projected, &costs[0].AtSeq
	}
	return b.showBudget(e, out)
}

// BudgetLs is `sandtrail budget ls`.
type BudgetLs struct{ Log }

// Run lists tenants that have a budget.
func (b *BudgetLs) Run(e *Env) error {
	tenants, _, err := b.tenants(e, "")
	if err != nil {
		return err
	}
	tenants = slices.DeleteFunc(tenants, func(t tenant.Tenant) bool { return !t.Budget.Set() })
	ctx, js, done, err := b.connect(e, permission.Operator)
	if err != nil {
		return err
	}
	defer done()
	out, err := budgetsOf(ctx, js, tenants...)
	if err != nil {
		return ended(ctx, err)
	}
	table := render.Table{Header: []string{"TENANT", "AMOUNT", "CURRENCY", "THRESHOLDS", "REFUSES", "REACHED", "STATE"}}
	for _, x := range out {
		table.Rows = append(table.Rows, []string{x.Tenant, x.Amount, x.Currency, percents(x.Thresholds), strconv.FormatBool(x.Refuse), percents(x.reached()), x.State})
	}
	if b.json() {
		return render.Value(e.Stdout, out)
	}
	return table.Write(e.Stdout)
}

// budgetJSON is a budget as programs get it. Amounts are decimals in the currency.
type budgetJSON struct {
	Tenant     string   `json:"tenant_id"`
	Version    uint32   `json:"version"`
	Amount     string   `json:"amount,omitempty"`
	Currency   string   `json:"currency,omitempty"`
	Thresholds []uint32 `json:"thresholds,omitempty"`
	Refuse     bool     `json:"refuse"`
	// State is none, watching, or refusing until RefusesUntil.
	State        string        `json:"state"`
	RefusesUntil *time.Time    `json:"refuses_until,omitempty"`
	Month        string        `json:"month"`
	Reached      []reachedJSON `json:"reached"`
	Spent        *string       `json:"spent,omitempty"`
	Projected    *string       `json:"projected,omitempty"`
	AtSequence   *uint64       `json:"at_sequence,omitempty"`
}

// reachedJSON is a threshold that was reached, of any month of this version of the budget.
type reachedJSON struct {
	Month      string    `json:"month"`
	Threshold  uint32    `json:"threshold"`
	At         time.Time `json:"at"`
	Spent      string    `json:"spent"`
	Projected  string    `json:"projected"`
	AtSequence uint64    `json:"at_sequence"`
}

const monthFormat = "2006-01"

// budgetsOf are the budgets of tenants as they are now, each with what it reached.
func budgetsOf(ctx context.Context, js jetstream.JetStream, tenants ...tenant.Tenant) ([]budgetJSON, error) {
	filter := subject.AllBudgets()
	if len(tenants) == 1 {
		filter = subject.Budget(tenants[0].ID).Subject()
	}
	reached := map[string][]envelope.Recorded{}
	err := directget.Each(ctx, js, topology.StreamEvents, filter, 1, func(m directget.Message) error {
		agg, err := subject.ParseEvent(m.Subject)
		if err != nil {
			return err
		}
		r, err := envelope.Decode(m.Subject, m.Seq, m.Header, m.Data)
		reached[agg.Tenant] = append(reached[agg.Tenant], r)
		return err
	})
	out := []budgetJSON{}
	for _, t := range tenants {
		out = append(out, budgetOf(t.ID, tenant.FoldBudget(t.Budget, reached[t.ID]), time.Now()))
	}
	return out, err
}

func budgetOf(id string, b tenant.BudgetState, now time.Time) budgetJSON {
	out := budgetJSON{
		Tenant: id, Version: b.Version, Thresholds: b.Thresholds, Refuse: b.Refuse, Currency: b.Currency, State: "none", Month: now.UTC().Format(monthFormat),
		Reached: []reachedJSON{},
	}
	if !b.Set() {
		return out
	}
	out.State, out.Amount = "watching", metering.FormatNanos(new(big.Int).SetUint64(b.Nanos))
	if until, refuses := b.Refuses(now); refuses {
		out.State, out.RefusesUntil = "refusing", &until
	}
	for _, r := range b.Reached {
		out.Reached = append(out.Reached, reachedJSON{r.Period.Format(monthFormat), r.Threshold, r.At, r.Spent, r.Projected, r.AtSeq})
	}
	return out
}

// reached are the thresholds of the present month.
func (b budgetJSON) reached() []uint32 {
	var all []uint32
	for _, r := range b.Reached {
		if r.Month == b.Month {
			all = append(all, r.Threshold)
		}
	}
	return all
}

func percents(all []uint32) string {
	var s []string
	for _, p := range all {
		s = append(s, strconv.FormatUint(uint64(p), 10)+"%")
	}
	return strings.Join(s, ",")
}

func (l *Log) showBudgetOf(e *Env, t tenant.Tenant) error {
	ctx, js, done, err := l.connect(e, permission.Operator)
	if err != nil {
		return err
	}
	defer done()
	all, err := budgetsOf(ctx, js, t)
	if err != nil {
		return ended(ctx, err)
	}
	return l.showBudget(e, all[0])
}

func (l *Log) showBudget(e *Env, b budgetJSON) error {
	if l.json() {
		return render.Value(e.Stdout, b)
	}
	fields := []render.Field{{Name: "Tenant", Value: b.Tenant}, {Name: "State", Value: b.State}}
	if b.Amount != "" {
		fields = append(fields,
			render.Field{Name: "Amount", Value: b.Amount + " " + b.Currency + " a month"},
			render.Field{Name: "Thresholds", Value: percents(b.Thresholds)},
			render.Field{Name: "Refuses", Value: strconv.FormatBool(b.Refuse)},
			render.Field{Name: "Month", Value: b.Month},
			render.Field{Name: "Reached", Value: percents(b.reached())},
		)
	}
	if b.RefusesUntil != nil {
		fields = append(fields, render.Field{Name: "Until", Value: clock(*b.RefusesUntil)})
	}
	if b.Spent != nil {
		fields = append(fields, render.Field{Name: "Spent", Value: *b.Spent + " " + b.Currency}, render.Field{Name: "Projected", Value: *b.Projected + " " + b.Currency})
	}
	return render.Fields(e.Stdout, fields)
}
