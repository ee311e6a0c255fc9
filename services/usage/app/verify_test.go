package app_test

import (
	"log/slog"
	"testing"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/metering"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/services/usage/app"
	"github.com/sandtrail/sandtrail/services/usage/internal/enginetest"
)

// Whatever is changed in ClickHouse by hand is found, and where.
func TestVerifyFindsEveryChange(t *testing.T) {
	e, n := enginetest.Start(t, ""), natstest.Start(t)
	a, err := app.New(t.Context(), app.Config{ClickHouse: e.URL(), RollEvery: 50 * time.Millisecond},
		app.Deps{NC: n.NC, JS: n.JS, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(t.Context()) }()
	check := app.Check{JS: n.JS, Address: e.URL()}
	_, err = app.Verify(t.Context(), check)
	require.True(t, fault.Is(err, fault.ReasonIllegalState), "%v", err)

	box := subject.Sandbox("acme", ids.New())
	at := time.Date(2026, 5, 31, 23, 50, 0, 0, time.UTC)
	for i, body := range []proto.Message{
		&eventsv1.SandboxRequested{SessionId: "s", Limits: &eventsv1.Limits{CpuMillis: 500}, Workspace: &eventsv1.Workspace{SizeBytes: 1 << 30}},
		&eventsv1.SandboxReady{},
		&eventsv1.SandboxUsageSampled{UptimeMs: 20 * 60_000, Usage: &commonv1.UsageMetrics{CpuMs: 60_000}},
	} {
		m, _, err := envelope.Encode(box.Subject(), envelope.Event{Meta: envelope.Meta{ID: ids.New(), Time: at.Add(time.Duration(i) * 10 * time.Minute)}, Body: body}, nil)
		require.NoError(t, err)
		_, err = n.JS.PublishMsg(t.Context(), m)
		require.NoError(t, err)
	}
	var v app.Verification
	require.Eventually(t, func() bool {
		v, err = app.Verify(t.Context(), check)
		return err == nil && v.Mark.Seq == 3
	}, 30*time.Second, 50*time.Millisecond)
	require.True(t, v.Same(), "%+v", v)
	require.Greater(t, v.Hours, 1000, "a workspace that is kept since May has many")
	require.Positive(t, v.Days)

	o, err := ch.ParseDSN(e.URL())
	require.NoError(t, err)
	conn, err := ch.Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	key := metering.Key{
		Tenant: "acme", Sandbox: box.ID, Session: "s", Meter: metering.SandboxCPUUsed,
		Hour: time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC).UnixMilli(),
	}
	change := func(table, set string) app.Verification {
		t.Helper()
		require.NoError(t, conn.Exec(t.Context(), "ALTER TABLE agents."+table+" UPDATE "+set+" WHERE meter = 'sandbox_cpu_used' AND "+
			map[string]string{"usage_hourly_raw": "hour", "usage_daily_raw": "day"}[table]+" >= toDateTime('2026-06-01', 'UTC') SETTINGS mutations_sync = 2"))
		v, err := app.Verify(t.Context(), check)
		require.NoError(t, err)
		return v
	}
	v = change("usage_hourly_raw", "quantity = quantity + 1")
	require.Equal(t, []metering.Difference{{Key: key, Want: 60_000_000, Have: 60_000_001}}, v.HourDifferences)
	require.Empty(t, v.DayDifferences)
	v = change("usage_hourly_raw", "quantity = quantity - 1")
	require.True(t, v.Same())
	v = change("usage_daily_raw", "quantity = 0")
	require.Empty(t, v.HourDifferences)
	require.Equal(t, []metering.Difference{{Key: key, Want: 60_000_000}}, v.DayDifferences)
	other := check
	other.Tenant = "other"
	v, err = app.Verify(t.Context(), other)
	require.NoError(t, err)
	require.True(t, v.Same())
	require.Zero(t, v.Hours)
}
