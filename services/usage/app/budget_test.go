package app_test

import (
	"fmt"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/metering"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/services/usage/app"
	"github.com/sandtrail/sandtrail/services/usage/internal/enginetest"
)

// lag bounds what is between a fact and the threshold that it reaches, where hours are added up every 50 ms: the rows' flush, adding up, and
// looking. It is a second or two; the rest is for machines that do other things as well.
const lag = 15 * time.Second

// account is a tenant with a budget, and all facts that cost something.
type account struct {
	t       *testing.T
	n       *natstest.Fixture
	log     *jslog.Log
	address string
	facts   []envelope.Recorded
	aggs    []subject.Aggregate
}

func (a *account) do(at time.Time, c tenant.Command) {
	a.t.Helper()
	_, err := eventlog.Execute(a.t.Context(), a.log, subject.Tenant("acme"), func(h eventlog.History) ([]envelope.Event, error) {
		bodies, err := tenant.Decide(tenant.Fold(h), c)
		return tenant.Events("acme", ids.New(), "operator:test", at, bodies...), err
	})
	require.NoError(a.t, err)
}

func (a *account) fact(agg subject.Aggregate, at time.Time, body proto.Message) {
	a.t.Helper()
	m, _, err := envelope.Encode(agg.Subject(), envelope.Event{Meta: envelope.Meta{ID: ids.New(), Time: at}, Body: body}, nil)
	require.NoError(a.t, err)
	ack, err := a.n.JS.PublishMsg(a.t.Context(), m)
	require.NoError(a.t, err)
	a.facts = append(a.facts, envelope.Recorded{Meta: envelope.Meta{Time: at}, Seq: ack.Sequence, Body: body})
	a.aggs = append(a.aggs, agg)
}

func (a *account) exec(at time.Time) {
	a.t.Helper()
	a.fact(subject.Exec("acme", ids.New(), ids.New()), at, &eventsv1.ExecCompleted{Reason: "exited", WallTimeUs: 1000, Usage: &commonv1.UsageMetrics{CpuMs: 1}})
}

// reached is what the log says was reached: how many months ago, version and threshold.
func (a *account) reached(now time.Time) []string {
	a.t.Helper()
	h, err := eventlog.Current(a.t.Context(), a.log, subject.Budget("acme"))
	require.NoError(a.t, err)
	present, _ := tenant.Period(now)
	var all []string
	for _, e := range h.Events {
		if b, ok := e.Body.(*eventsv1.BudgetReached); ok {
			month := "this"
			if b.GetPeriodStart().AsTime().Before(present) {
				month = "last"
			}
			all = append(all, fmt.Sprintf("%s v%d %d%%", month, b.GetVersion(), b.GetThreshold()))
		}
	}
	return all
}

func (a *account) await(now time.Time, want ...string) {
	a.t.Helper()
	require.Eventually(a.t, func() bool { return len(a.reached(now)) >= len(want) }, lag, 20*time.Millisecond, "%v", want)
	require.Equal(a.t, want, a.reached(now))
}

// owed is the invoice of the facts by libs/metering, from the events alone.
func (a *account) owed(month, until time.Time) string {
	a.t.Helper()
	l := metering.NewLedger()
	for i, e := range a.facts {
		l.Add(e, a.aggs[i])
	}
	prices, err := app.Prices(a.t.Context(), a.address)
	require.NoError(a.t, err)
	return metering.Cost(metering.Invoice(l.Windows(until.UnixMilli()), prices), "acme", month.UnixMilli(), "EUR").String()
}

// Two services add up and look at once: by facts, by late ones of the month before, by what a running sandbox is expected to use, and by a
// price that is corrected, each threshold is reached once and in time.
func TestBudgetsAreReachedByTheInvoice(t *testing.T) {
	e, n := enginetest.Start(t, ""), natstest.Start(t)
	a := &account{t: t, n: n, log: jslog.New(n.JS), address: e.URL()}
	now := time.Now().UTC()
	present, _ := tenant.Period(now)
	last := present.AddDate(0, -1, 0)
	serve(t, n, e.URL())
	serve(t, n, e.URL())
	price := func(m metering.Meter, nanos, per uint64) {
		t.Helper()
		_, err := app.AddPrices(t.Context(), e.URL(), []metering.Price{{Meter: m, From: last.UnixMilli(), Nanos: nanos, Per: per, Currency: "EUR"}}, true)
		require.NoError(t, err)
	}
	price(metering.Execs, 250_000_000, 1)
	price(metering.SandboxUptime, 60_000_000, 60_000)
	a.do(last, tenant.CreateTenant{})
	a.do(last, tenant.SetBudget{Amount: "1", Currency: "EUR", Thresholds: []uint32{50, 80}, Refuse: true})

	a.exec(now)
	a.exec(now)
	a.await(now, "this v1 50%")

	// Late facts of the month before are that month's.
	a.exec(present.Add(-time.Hour))
	a.exec(present.Add(-time.Hour))
	a.await(now, "this v1 50%", "last v1 50%")

	// 0.75 were spent, and the sandbox that runs will have cost 0.06 when it is sampled in a minute: 81 %.
	a.exec(now)
	box := subject.Sandbox("acme", ids.New())
	a.fact(box, now, &eventsv1.SandboxRequested{SessionId: "s", Limits: &eventsv1.Limits{CpuMillis: 500}})
	a.fact(box, now, &eventsv1.SandboxReady{})
	a.await(now, "this v1 50%", "last v1 50%", "this v1 80%")
	h, err := eventlog.Current(t.Context(), a.log, subject.Budget("acme"))
	require.NoError(t, err)
	body := h.Events[len(h.Events)-1].Body.(*eventsv1.BudgetReached)
	require.Equal(t, []string{"0.75", "0.81"}, []string{body.GetSpent(), body.GetProjected()})
	require.GreaterOrEqual(t, body.GetAtSequence(), a.facts[len(a.facts)-1].Seq)

	// It is sampled: what was expected is what it costs.
	a.fact(box, now.Add(time.Minute), &eventsv1.SandboxUsageSampled{UptimeMs: 60_000, Usage: &commonv1.UsageMetrics{}})
	var costs []app.Cost
	require.Eventually(t, func() bool {
		costs, err = app.Costs(t.Context(), e.URL(), "acme", "EUR", last, present)
		return err == nil && costs[1].AtSeq >= a.facts[len(a.facts)-1].Seq
	}, lag, 20*time.Millisecond)
	require.Equal(t, "810000000", costs[1].Spent.String())
	require.Equal(t, a.owed(present, now), costs[1].Spent.String())
	require.Equal(t, a.owed(last, now), costs[0].Spent.String())
	require.Equal(t, big.NewInt(870_000_000).String(), costs[1].Projected.String())
	other, err := app.Costs(t.Context(), e.URL(), "acme", "USD", present)
	require.NoError(t, err)
	require.Zero(t, other[0].Projected.Sign(), "what is priced in another currency does not count")

	// A price that is corrected changes what was spent, of both months: three execs at 0.32, and two.
	price(metering.Execs, 320_000_000, 1)
	a.await(now, "this v1 50%", "last v1 50%", "this v1 80%", "this v1 100%")
	tn, err := eventlog.Current(t.Context(), a.log, subject.Tenant("acme"))
	require.NoError(t, err)
	h, err = eventlog.Current(t.Context(), a.log, subject.Budget("acme"))
	require.NoError(t, err)
	require.Error(t, tenant.FoldBudget(tenant.Fold(tn).Budget, h.Events).Admit("acme", now))

	a.do(now, tenant.SetBudget{Amount: "2", Currency: "EUR", Thresholds: []uint32{50}, Refuse: true})
	a.await(now, "this v1 50%", "last v1 50%", "this v1 80%", "this v1 100%", "this v2 50%")
	// Two more services, and the first two again: nobody tells it once more.
	serve(t, n, e.URL())
	serve(t, n, e.URL())
	a.exec(now)
	require.Eventually(t, func() bool {
		costs, err = app.Costs(t.Context(), e.URL(), "acme", "EUR", present)
		return err == nil && costs[0].AtSeq >= a.facts[len(a.facts)-1].Seq
	}, lag, 20*time.Millisecond)
	require.Len(t, a.reached(now), 5)
	require.True(t, same(t, n.JS, e.URL()).Same())
}
