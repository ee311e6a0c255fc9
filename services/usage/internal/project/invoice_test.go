package project_test

import (
	"math/big"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/metering"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/services/usage/internal/enginetest"
)

// tableOf gives the cells of the table of the page about metering whose header begins so, without `.
func tableOf(t *testing.T, header string) [][]string {
	t.Helper()
	page, err := os.ReadFile("../../../../docs/METERING.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(page), "\n| "+header)
	require.True(t, ok, "no table %s", header)
	rest, _, _ = strings.Cut(rest, "\n\n")
	var rows [][]string
	for _, line := range strings.Split(rest, "\n")[2:] {
		cells := strings.Split(strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(line, "|"), "|"), "`", ""), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	return rows
}

// number reads one with commas; nothing is 0.
func number(t *testing.T, s string) uint64 {
	t.Helper()
	if s == "" {
		return 0
	}
	n, err := strconv.ParseUint(strings.ReplaceAll(s, ",", ""), 10, 64)
	require.NoError(t, err)
	return n
}

// calculation is "a x b / c = d" or "a x b = d" as it stands on the page.
var calculation = regexp.MustCompile(`([0-9,]+) x ([0-9,]+)(?: / ([0-9,]+))? = ([0-9,]+)$`)

// calculated checks a calculation of the page and gives its result.
func calculated(t *testing.T, s string) uint64 {
	t.Helper()
	m := calculation.FindStringSubmatch(s)
	require.NotNil(t, m, "%q is no calculation", s)
	n := new(big.Int).Mul(new(big.Int).SetUint64(number(t, m[1])), new(big.Int).SetUint64(number(t, m[2])))
	if m[3] != "" {
		n.Quo(n, new(big.Int).SetUint64(number(t, m[3])))
	}
	require.Equal(t, strings.ReplaceAll(m[4], ",", ""), n.String(), s)
	return n.Uint64()
}

// fact is the event of a row of the page.
func fact(t *testing.T, box subject.Aggregate, kind string, up, cpu, memory uint64) (subject.Aggregate, proto.Message) {
	t.Helper()
	u := &commonv1.UsageMetrics{CpuMs: cpu, MemoryAvgBytes: memory << 20}
	switch kind {
	case "requested: 500 thousandths of a core, 1 GiB of memory, a workspace of 2 GiB":
		return box, &eventsv1.SandboxRequested{Limits: &eventsv1.Limits{CpuMillis: 500, MemoryBytes: 1 << 30}, Workspace: &eventsv1.Workspace{SizeBytes: 2 << 30}}
	case "ready":
		return box, &eventsv1.SandboxReady{}
	case "sampled":
		return box, &eventsv1.SandboxUsageSampled{UptimeMs: up, Usage: u}
	case "stopped":
		return box, &eventsv1.SandboxStopped{UptimeMs: up, Usage: u}
	case "destroyed":
		return box, &eventsv1.SandboxDestroyed{UptimeMs: up, Usage: u}
	case "an exec completed":
		return subject.Exec(box.Tenant, box.ID, ids.New()), &eventsv1.ExecCompleted{WallTimeUs: up * 1000, Usage: u}
	case "workspace deleted":
		return subject.Workspace(box.Tenant, box.ID), &eventsv1.WorkspaceDeleted{}
	}
	require.Fail(t, "not a fact", kind)
	return box, nil
}

// The page recomputes an invoice by hand: its facts give these lines, and its sums are right.
func TestTheInvoiceOfThePageIsRight(t *testing.T) {
	b := newBook(t, enginetest.Open(t, enginetest.Start(t, "").URL()), 1)
	box := subject.Sandbox("acme", ids.New())
	for i, row := range tableOf(t, "time | fact |") {
		at, err := time.Parse(time.DateTime, row[0])
		require.NoError(t, err)
		if i == 0 {
			b.mark.At = at
		}
		agg, body := fact(t, box, row[1], number(t, row[2]), number(t, row[3]), number(t, row[4]))
		if rows := b.add(agg, at.Sub(b.mark.At), body); len(rows) > 0 {
			b.insert(rows...)
		}
	}
	b.roll()
	b.same()

	type line struct {
		meter           metering.Meter
		quantity, nanos uint64
		from            string
	}
	var want []line
	for _, row := range tableOf(t, "meter | price | valid from |") {
		m := metering.Meter(row[0])
		price := strings.Fields(row[1])
		require.Len(t, price, 5, "%s", row[1])
		nanos, err := metering.ParseNanos(price[0])
		require.NoError(t, err)
		from, err := time.Parse("2006-01-02 15:04", row[2])
		require.NoError(t, err)
		p := metering.Price{Meter: m, From: from.UnixMilli(), Version: 1, Nanos: nanos, Currency: price[1]}
		for _, d := range metering.Denominations(m.Unit()) {
			if d.Name == price[3] {
				p.Per = d.Units
			}
		}
		if price[4] == "(acme)" {
			p.Tenant = "acme"
		}
		require.NoError(t, b.c.AddPrice(t.Context(), p))
		amount := row[4]
		require.Contains(t, strings.ReplaceAll(amount, ",", ""), " x "+strconv.FormatUint(p.Nanos, 10)+" / "+strconv.FormatUint(p.Per, 10)+" = ")
		quantity := calculated(t, row[3])
		require.True(t, strings.HasPrefix(strings.ReplaceAll(amount, ",", ""), strconv.FormatUint(quantity, 10)+" x "), amount)
		want = append(want, line{m, quantity, calculated(t, amount), row[2]})
	}
	may := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	lines, err := b.c.Invoice(t.Context(), "acme", may, may.AddDate(0, 1, 0))
	require.NoError(t, err)
	var got []line
	total := new(big.Int)
	for _, l := range lines {
		got = append(got, line{l.Meter, l.Quantity, l.Nanos.Uint64(), time.UnixMilli(l.Price.From).UTC().Format("2006-01-02 15:04")})
		total.Add(total, l.Nanos)
	}
	require.ElementsMatch(t, want, got)
	page, err := os.ReadFile("../../../../docs/METERING.md")
	require.NoError(t, err)
	require.Contains(t, string(page), "acme owes "+metering.FormatNanos(total)+" EUR for May")
}
