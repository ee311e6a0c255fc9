package cli_test

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	usageapp "github.com/sandtrail/sandtrail/services/usage/app"
)

func TestUsageByHourIsShownExplainedAndVerified(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: a real ClickHouse")
	}
	n := natstest.Start(t)
	a, err := usageapp.New(t.Context(), usageapp.Config{Dir: t.TempDir(), NativePort: -1, HTTPPort: -1, RollEvery: 100 * time.Millisecond},
		usageapp.Deps{NC: n.NC, JS: n.JS, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	t.Setenv("SANDTRAIL_CLICKHOUSE", "clickhouse://default@"+a.Address().Native)
	t.Setenv("SANDTRAIL_NATS", n.URL)

	start := time.Date(2026, 5, 31, 23, 50, 0, 0, time.UTC)
	box := subject.Sandbox("acme", ids.New())
	exec := subject.Exec("acme", box.ID, ids.New())
	row := ids.New()
	add := func(agg subject.Aggregate, at time.Time, body proto.Message) {
		var m *nats.Msg
		m, _, err := envelope.Encode(agg.Subject(), envelope.Event{Meta: envelope.Meta{ID: ids.New(), Time: at}, Body: body}, nil)
		require.NoError(t, err)
		_, err = n.JS.PublishMsg(t.Context(), m)
		require.NoError(t, err)
	}
	add(box, start, &eventsv1.SandboxRequested{SessionId: "=s", Limits: &eventsv1.Limits{CpuMillis: 500, MemoryBytes: 1 << 30}})
	add(box, start, &eventsv1.SandboxReady{})
	add(exec, start.Add(5*time.Minute), &eventsv1.ExecCompleted{UsageEventId: row, WallTimeUs: 2e6, Usage: &commonv1.UsageMetrics{CpuMs: 7}})
	add(box, start.Add(20*time.Minute), &eventsv1.SandboxUsageSampled{
		UptimeMs: 20 * 60_000, Usage: &commonv1.UsageMetrics{CpuMs: 60_000, MemoryAvgBytes: 1 << 29},
	})
	run := func(args ...string) result {
		r := runCLI(nil, nil, append([]string{"usage"}, args...)...)
		require.Equal(t, cli.ExitOK, r.code, r.stderr+r.stdout)
		return r
	}
	require.Eventually(t, func() bool { return strings.Contains(run("show").stdout, "sandbox_cpu_used") }, 30*time.Second, 100*time.Millisecond)

	rows, err := csv.NewReader(strings.NewReader(run("show", "--by", "month,session", "--meter", "sandbox_cpu_used", "-o", "csv").stdout)).ReadAll()
	require.NoError(t, err)
	require.Equal(t, [][]string{
		{"month", "session", "meter", "quantity", "unit", "amount"},
		{"2026-05", "'=s", "sandbox_cpu_used", "30000000", "cpu_us", "30 cpu-s"},
		{"2026-06", "'=s", "sandbox_cpu_used", "30000000", "cpu_us", "30 cpu-s"},
	}, rows)
	memory := run("show", "--by", "hour", "--meter", "sandbox_memory_used", "--since", "2026-06-01", "--until", "2026-06-01T01:00:00Z", "-o", "json").stdout
	require.JSONEq(t, `[{"of":{"hour":"2026-06-01T00:00:00Z"},"meter":"sandbox_memory_used","quantity":"307200000","unit":"mib_ms","amount":"300 GiB-s"}]`, memory)
	require.Contains(t, run("top", "tenant", "--since", "2026-05-01").stdout, "acme")
	require.NotContains(t, run("top", "tenant").stdout, "acme", "the last day")

	for _, id := range []string{box.ID, row, exec.ID} {
		out := run("explain", id).stdout
		require.Contains(t, out, box.ID)
		if id == box.ID {
			require.Contains(t, out, "500 thousandths of a core x 1200000 ms")
			require.Contains(t, out, "600000000")
		} else {
			require.Contains(t, out, "ExecCompleted")
			require.Contains(t, out, "exec_cpu")
		}
	}
	r := runCLI(nil, nil, "usage", "explain", ids.New())
	require.Equal(t, cli.ExitNotFound, r.code, r.stderr)

	var v struct{ Sequence, Events, Hours, Different int }
	require.NoError(t, json.Unmarshal([]byte(run("verify", "-o", "json").stdout), &v))
	require.Equal(t, 4, v.Sequence)
	require.Equal(t, 4, v.Events)
	require.Positive(t, v.Hours)
	require.Zero(t, v.Different)
}

func TestUsageByHourRefusesWhatIsNoQuestion(t *testing.T) {
	for _, args := range [][]string{
		{"show", "--meter", "x"},
		{"show", "--sandbox", "x"},
		{"show", "--since", "yesterday"},
		{"show", "--until", "2026-05-01T00:30:00Z"},
		{"top", "exec"},
		{"top", "-n", "0"},
		{"explain", "x"},
	} {
		r := runCLI(nil, nil, append([]string{"usage"}, args...)...)
		require.Equal(t, cli.ExitUsage, r.code, "%v: %s", args, r.stderr)
	}
	r := runCLI(nil, nil, "usage", "show", "--by", "year")
	require.Equal(t, cli.ExitRefused, r.code, r.stderr)
}
