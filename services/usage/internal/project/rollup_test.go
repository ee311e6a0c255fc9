package project_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/metering"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
	"github.com/sandtrail/sandtrail/services/usage/internal/enginetest"
	"github.com/sandtrail/sandtrail/services/usage/internal/project"
)

// book is a log whose events go to ClickHouse as rows and to a ledger, which compute the same by different means.
type book struct {
	t      *testing.T
	c      *clickhouse.Conn
	r      *rand.Rand
	ledger *metering.Ledger
	owners map[string]metering.Owner
	mark   clickhouse.Mark
	rows   []clickhouse.Row
}

func newBook(t *testing.T, c *clickhouse.Conn, seed uint64) *book {
	return &book{
		t: t, c: c, r: rand.New(rand.NewPCG(seed, 0)), ledger: metering.NewLedger(), owners: map[string]metering.Owner{},
		mark: clickhouse.Mark{Life: "life", At: start.Add(-40 * 24 * time.Hour), Schema: 2},
	}
}

// add is one event, stored a while after the one before.
func (b *book) add(agg subject.Aggregate, later time.Duration, body proto.Message) []clickhouse.Row {
	b.mark.Seq++
	b.mark.At = b.mark.At.Add(later).Truncate(time.Millisecond)
	e := envelope.Recorded{Meta: envelope.Meta{ID: ids.New(), Tenant: agg.Tenant, Time: b.mark.At}, Subject: agg.Subject(), Seq: b.mark.Seq, Body: body}
	b.ledger.Add(e, agg)
	if q, ok := body.(*eventsv1.SandboxRequested); ok {
		b.owners[agg.Tenant+agg.Sandbox] = metering.OwnerOf(q)
		return nil
	}
	o := b.owners[agg.Tenant+agg.Sandbox]
	row, err := project.Map(e, agg, o)
	require.NoError(b.t, err)
	made := []clickhouse.Row{row}
	if agg.Kind == subject.KindSandbox {
		reading, err := project.MapReading(row, e, agg, o)
		require.NoError(b.t, err)
		made = append(made, reading)
	}
	return made
}

func (b *book) insert(rows ...clickhouse.Row) {
	require.NoError(b.t, b.c.Insert(b.t.Context(), clickhouse.Rows(rows...)))
	b.rows = append(b.rows, rows...)
}

func (b *book) roll() { require.NoError(b.t, b.c.Roll(b.t.Context(), b.mark)) }

// same compares every hour and every day with what the ledger says.
func (b *book) same() {
	b.t.Helper()
	want := b.ledger.Windows(b.mark.Until())
	got, err := b.c.Hours(b.t.Context(), "", false)
	require.NoError(b.t, err)
	require.Empty(b.t, metering.Compare(want, got))
	days := metering.Windows{}
	for k, v := range want {
		k.Hour = time.UnixMilli(k.Hour).UTC().Truncate(24 * time.Hour).UnixMilli()
		days[k] += v
	}
	got, err = b.c.Hours(b.t.Context(), "", true)
	require.NoError(b.t, err)
	require.Empty(b.t, metering.Compare(days, got))
}

// any is any event of one of a few sandboxes, also such that no decider would allow.
func (b *book) any() []clickhouse.Row {
	n := b.r.IntN(6)
	agg := subject.Sandbox(fmt.Sprint("tenant-", n%2), ids.Derive("rollup", fmt.Sprint(n)))
	later := time.Duration(b.r.Int64N(int64(90 * time.Minute)))
	number := func() uint64 { return b.r.Uint64() >> (b.r.IntN(40) + 24) }
	u := &commonv1.UsageMetrics{
		CpuMs: number(), MemoryAvgBytes: number(), DiskReadBytes: number(), DiskWriteBytes: number(), NetworkEgressBytes: number(), NetworkIngressBytes: number(),
	}
	up := b.r.Uint64N(1 << 28)
	// The first event of a sandbox is its request; one has none that could be read.
	if _, known := b.owners[agg.Tenant+agg.Sandbox]; !known && n > 0 {
		return b.add(agg, later, &eventsv1.SandboxRequested{
			SessionId: fmt.Sprint("session-", n), Limits: &eventsv1.Limits{CpuMillis: b.r.Uint32N(64_000), MemoryBytes: number()},
			Workspace: &eventsv1.Workspace{SizeBytes: number()},
		})
	}
	switch b.r.IntN(8) {
	case 1, 2:
		return b.add(agg, later, &eventsv1.SandboxReady{})
	case 3:
		return b.add(agg, later, &eventsv1.SandboxUsageSampled{UptimeMs: up, Usage: u})
	case 4:
		return b.add(agg, later, &eventsv1.SandboxStopped{UptimeMs: up, Usage: u})
	case 5:
		return b.add(agg, later, &eventsv1.SandboxFailed{UptimeMs: up, Usage: u})
	case 6:
		if b.r.IntN(4) > 0 {
			return b.add(agg, later, &eventsv1.SandboxDestroyed{UptimeMs: up, Usage: u})
		}
		return b.add(subject.Workspace(agg.Tenant, agg.ID), later, &eventsv1.WorkspaceDeleted{})
	default:
		return b.add(subject.Exec(agg.Tenant, agg.ID, ids.New()), later, &eventsv1.ExecCompleted{
			WallTimeUs: b.r.Uint64N(1 << 34), SessionId: []string{"", "own"}[b.r.IntN(2)], Usage: u,
			Stdout: &eventsv1.Output{Bytes: up, DroppedBytes: up / 3},
		})
	}
}

// Whatever the log says and however it is cut, replayed and added up, by one or by several at once: each hour is what a ledger of
// the events has.
func TestRollupsEqualALedgerOfTheEvents(t *testing.T) {
	c := enginetest.Open(t, enginetest.Start(t, "").URL())
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	b := newBook(t, c, seed)
	for round := range 12 {
		var batch []clickhouse.Row
		for range 5 + b.r.IntN(60) {
			batch = append(batch, b.any()...)
		}
		b.r.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
		cut := b.r.IntN(len(batch) + 1)
		b.insert(batch[:cut]...)
		b.insert(batch[cut:]...)
		switch round % 4 {
		case 1:
			b.insert(b.rows...)
		case 2:
			var g errgroup.Group
			for range 3 {
				g.Go(func() error { return c.Roll(t.Context(), b.mark) })
			}
			require.NoError(t, g.Wait())
		case 3:
			// A row that comes after it was passed: its event had been set aside.
			rows := b.add(subject.Exec("tenant-0", ids.Derive("rollup", "0"), ids.New()), time.Minute, &eventsv1.ExecCompleted{WallTimeUs: 60 * 1e6})
			b.roll()
			b.insert(rows...)
			require.NoError(t, c.Late(t.Context(), rows[0].Tenant, rows[0].Sandbox))
		}
		b.roll()
		b.same()
	}
	require.NoError(t, c.Clear(t.Context()))
	b.insert(b.rows...)
	b.roll()
	b.same()
}

// An hour is closed when it has been over for long enough by the log's clock, and a fact that comes later reopens it for all to see.
func TestALateFactReopensAClosedHour(t *testing.T) {
	e := enginetest.Start(t, "")
	c := enginetest.Open(t, e.URL())
	b := newBook(t, c, 1)
	box := subject.Sandbox("acme", ids.New())
	b.insert(b.add(box, 0, &eventsv1.SandboxReady{})...)
	b.insert(b.add(box, 10*time.Minute, &eventsv1.SandboxUsageSampled{UptimeMs: 600_000})...)
	b.roll()
	states := "SELECT arraySort(groupArray((formatDateTime(hour, '%H'), state))) FROM agents.usage_windows WHERE tenant_id = 'acme'"
	first := fmt.Sprintf("%02d", b.mark.At.Hour())
	if b.mark.At.Minute() < 10 {
		first = fmt.Sprintf("%02d", b.mark.At.Add(-10*time.Minute).Hour())
	}
	require.Contains(t, ask(t, e.HTTP(), states), "('"+first+"','open')")
	b.insert(b.add(subject.Exec("acme", box.ID, ids.New()), 5*time.Hour, &eventsv1.ExecCompleted{WallTimeUs: 1e6})...)
	b.roll()
	require.Contains(t, ask(t, e.HTTP(), states), "('"+first+"','closed')")
	b.insert(b.add(subject.Exec("acme", box.ID, ids.New()), time.Second, &eventsv1.ExecCompleted{WallTimeUs: 6 * 3600 * 1e6})...)
	b.roll()
	require.Contains(t, ask(t, e.HTTP(), states), "('"+first+"','reopened')")
	b.same()
	require.Equal(t, fmt.Sprint(b.mark.Seq), ask(t, e.HTTP(), "SELECT final_seq FROM agents.usage_watermarks WHERE tenant_id = 'acme'"))
}

// Its last hour was not over when it went.
func TestARemovedWorkspaceIsBilledUpToItsRemoval(t *testing.T) {
	b := newBook(t, enginetest.Open(t, enginetest.Start(t, "").URL()), 1)
	box := subject.Sandbox("acme", ids.New())
	b.add(box, 0, &eventsv1.SandboxRequested{Workspace: &eventsv1.Workspace{SizeBytes: 1 << 30}})
	b.insert(b.add(box, time.Minute, &eventsv1.SandboxReady{})...)
	b.insert(b.add(subject.Workspace("acme", box.ID), 90*time.Minute, &eventsv1.WorkspaceDeleted{})...)
	b.roll()
	b.same()
	b.insert(b.add(subject.Exec("acme", ids.New(), ids.New()), 2*time.Hour, &eventsv1.ExecCompleted{})...)
	b.roll()
	b.same()
	require.Equal(t, uint64(90*60_000*1024), b.ledger.Windows(b.mark.Until()).Total("acme")[metering.WorkspaceStorage])
}

// The view of invoices and the ledger price the same hours to the same billionth.
func TestInvoiceLinesEqualThoseOfALedger(t *testing.T) {
	e := enginetest.Start(t, "")
	c := enginetest.Open(t, e.URL())
	b := newBook(t, c, 7)
	for range 200 {
		if rows := b.any(); len(rows) > 0 {
			b.insert(rows...)
		}
	}
	b.roll()
	var prices []metering.Price
	for i, p := range []struct {
		tenant string
		meter  metering.Meter
		from   time.Time
		nanos  uint64
	}{
		{"", metering.ExecCPU, time.Unix(0, 0), 1_234_567},
		{"", metering.ExecCPU, start.Add(time.Minute), 777},
		{"", metering.WorkspaceStorage, time.Unix(0, 0), 31},
		{"tenant-1", metering.WorkspaceStorage, start.Add(-30 * 24 * time.Hour), 13},
		{"tenant-1", metering.WorkspaceStorage, start.Add(-30 * 24 * time.Hour), 12},
		{"tenant-1", metering.SandboxUptime, time.Unix(0, 0), 9},
	} {
		p := metering.Price{Tenant: p.tenant, Meter: p.meter, From: metering.Hour(p.from.UnixMilli()), Version: uint32(i), Nanos: p.nanos, Per: 3_600_000, Currency: "EUR"}
		require.NoError(t, c.AddPrice(t.Context(), p))
		prices = append(prices, p)
	}
	want, err := c.Invoice(t.Context(), "", time.Time{}, time.Time{})
	require.NoError(t, err)
	got := map[metering.LineKey]metering.Line{}
	for _, l := range want {
		got[metering.LineKey{Tenant: l.Tenant, Month: l.Month, Price: l.Price}] = l
	}
	lines := metering.Invoice(b.ledger.Windows(b.mark.Until()), prices)
	require.NotEmpty(t, lines)
	require.Len(t, got, len(lines))
	for k, l := range lines {
		require.Equal(t, l.Quantity, got[k].Quantity, "%+v", k)
		require.Equal(t, l.Nanos.String(), got[k].Nanos.String(), "%+v", k)
	}
	require.Error(t, c.AddPrice(t.Context(), metering.Price{Meter: metering.Execs, Per: 0, Currency: "EUR"}))
	require.Error(t, c.AddPrice(t.Context(), metering.Price{Meter: "no meter", Per: 1, Currency: "EUR"}))
}
