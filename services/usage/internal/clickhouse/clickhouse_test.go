package clickhouse_test

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
	"github.com/sandtrail/sandtrail/services/usage/internal/enginetest"
)

func TestMain(m *testing.M) { enginetest.Main(m) }

func tables(t *testing.T, address string) []string {
	t.Helper()
	o, err := ch.ParseDSN(address)
	require.NoError(t, err)
	conn, err := ch.Open(o)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	var names []string
	require.NoError(t, conn.QueryRow(context.Background(), "SELECT arraySort(groupArray(name)) FROM system.tables WHERE database = 'agents'").Scan(&names))
	return names
}

func TestMigrationsGoUpAgainDownAndUp(t *testing.T) {
	e := enginetest.Start(t, "")
	c := enginetest.Open(t, e.URL())
	want := []string{
		"invoice_lines", "sandbox_usage", "usage_daily", "usage_daily_raw", "usage_events", "usage_events_raw", "usage_hourly", "usage_hourly_raw",
		"usage_late", "usage_prices", "usage_readings", "usage_rollup", "usage_watermarks", "usage_windows", "usage_windows_raw",
	}
	require.Equal(t, want, tables(t, e.URL()))
	require.NoError(t, c.Up(t.Context()))
	require.Equal(t, want, tables(t, e.URL()))
	require.NoError(t, c.Down(t.Context()))
	require.Empty(t, tables(t, e.URL()))
	require.NoError(t, c.Up(t.Context()))
	require.Equal(t, want, tables(t, e.URL()))
	require.NoError(t, c.Insert(t.Context(), clickhouse.Rows(row(1))))
	rows, _, err := c.List(t.Context(), clickhouse.Filter{})
	require.NoError(t, err)
	require.Equal(t, []clickhouse.Row{row(1)}, rows)
}

// row is the n-th row, every column set to something of its own.
func row(n int) clickhouse.Row {
	v, code := uint64(n)*100, int32(-n)
	id := func(kind byte) uuid.UUID { return uuid.UUID{kind, 15: byte(n)} }
	return clickhouse.Row{
		ID: id(1), Type: clickhouse.ExecCommand, Outcome: "completed", Tenant: "acme", Session: "s", Org: "o", Sandbox: id(2), Exec: id(3),
		OccurredAt: time.Date(2026, 5, 24, 10, 0, n, 123456789, time.UTC), CPUMillis: v + 1, MemoryPeak: v + 2, MemoryAvg: v + 3,
		DiskRead: v + 4, DiskWrite: v + 5, Egress: v + 6, Ingress: v + 7, GPUMillis: v + 8, GPUMemory: 1<<63 + v, WallMillis: v + 10,
		ExitCode: &code, Signal: 9, Reason: "exited", StdoutBytes: v + 11, StderrBytes: v + 12, Method: "cgroup", EventID: id(4), Seq: v, Schema: 1,
	}
}

// A server that is killed between noting that it has a block and having it takes the block when it is sent again.
func TestRowsThatAServerLostAreTakenWhenTheyAreSentAgain(t *testing.T) {
	dir := t.TempDir()
	e := enginetest.Start(t, dir)
	c := enginetest.Open(t, e.URL())
	require.NoError(t, c.Insert(t.Context(), clickhouse.Rows(row(1), row(2))))
	e.Close()
	parts, err := filepath.Glob(filepath.Join(dir, "store", "*", "*", "20*_*_*_*"))
	require.NoError(t, err)
	require.NotEmpty(t, parts)
	for _, part := range parts {
		require.NoError(t, os.RemoveAll(part))
	}

	again := enginetest.Open(t, enginetest.Start(t, dir).URL())
	rows, _, err := again.List(t.Context(), clickhouse.Filter{Tenant: "acme", Limit: 10})
	require.NoError(t, err)
	require.Empty(t, rows)
	require.NoError(t, again.Insert(t.Context(), clickhouse.Rows(row(1), row(2))))
	rows, _, err = again.List(t.Context(), clickhouse.Filter{Tenant: "acme", Limit: 10})
	require.NoError(t, err)
	require.Len(t, rows, 2)
}

func TestListPagesThroughEverythingOnce(t *testing.T) {
	for _, protocol := range []string{"native", "http"} {
		t.Run(protocol, func(t *testing.T) {
			e := enginetest.Start(t, "")
			address := e.URL()
			if protocol == "http" {
				u, err := url.Parse(e.URL())
				require.NoError(t, err)
				h, err := url.Parse(e.HTTP())
				require.NoError(t, err)
				h.User, h.Path = u.User, u.Path
				address = h.String()
			}
			c := enginetest.Open(t, address)
			var want []clickhouse.Row
			for n := 1; n <= 9; n++ {
				r := row(n)
				// Several of one instant: the order needs the id too.
				r.OccurredAt = r.OccurredAt.Truncate(4 * time.Second)
				want = append(want, r)
			}
			require.NoError(t, c.Insert(t.Context(), clickhouse.Rows(want...)))
			slices.Reverse(want)
			var got []clickhouse.Row
			f := clickhouse.Filter{Tenant: "acme", Limit: 2}
			for {
				page, next, err := c.List(t.Context(), f)
				require.NoError(t, err)
				require.LessOrEqual(t, len(page), 2)
				got = append(got, page...)
				if next == "" {
					break
				}
				f.Cursor = next
			}
			require.Equal(t, want, got)
		})
	}
}

func TestListFiltersAndRefusesWhatIsNoFilter(t *testing.T) {
	c := enginetest.Open(t, enginetest.Start(t, "").URL())
	other := row(2)
	other.Tenant, other.Session = "other", "t"
	require.NoError(t, c.Insert(t.Context(), clickhouse.Rows(row(1), other)))
	for name, f := range map[string]clickhouse.Filter{
		"tenant": {Tenant: "other"}, "session": {Session: "t"}, "sandbox": {Sandbox: other.Sandbox.String()}, "exec": {Exec: other.Exec.String()},
	} {
		rows, _, err := c.List(t.Context(), f)
		require.NoError(t, err, name)
		require.Equal(t, []clickhouse.Row{other}, rows, name)
	}
	rows, _, err := c.List(t.Context(), clickhouse.Filter{Tenant: "acme' OR '1'='1"})
	require.NoError(t, err)
	require.Empty(t, rows)

	_, _, err = c.List(t.Context(), clickhouse.Filter{Sandbox: "x", Exec: "y", Limit: clickhouse.MaxPage + 1, Cursor: "!"})
	require.Equal(t, fault.InvalidArgument, fault.CodeOf(err))
	require.Len(t, fault.From(err).Fields, 4)
}

func TestABadAddressIsRefusedWithoutItsPassword(t *testing.T) {
	_, err := clickhouse.Open("clickhouse://me:hunter2@host:port/x?dial_timeout=soon")
	require.Equal(t, fault.InvalidArgument, fault.CodeOf(err))
	require.NotContains(t, err.Error(), "hunter2")
}
