package cli_test

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
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

// bill is a ClickHouse with the usage of one sandbox, ready in the last minutes of a May.
type bill struct {
	// admin is the file with the address of the user who may do everything.
	admin string
	box   subject.Aggregate
	// exec and row are ids of its one exec.
	exec, row string
	js        jetstream.JetStream
}

// billed runs the usage service over a log of one sandbox, and gives what runs `sandtrail usage` on both.
func billed(t *testing.T) (bill, func(args ...string) result) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: a real ClickHouse")
	}
	n := natstest.Start(t)
	dir := t.TempDir()
	a, err := usageapp.New(t.Context(), usageapp.Config{Dir: dir, NativePort: -1, HTTPPort: -1, RollEvery: 100 * time.Millisecond},
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
		t.Helper()
		r := runCLI(nil, nil, append([]string{"usage"}, args...)...)
		require.Equal(t, cli.ExitOK, r.code, r.stderr+r.stdout)
		return r
	}
	// Hours stand a moment before the mark that says so.
	require.Eventually(t, func() bool {
		var v struct{ Sequence int }
		r := runCLI(nil, nil, "usage", "verify", "-o", "json")
		return r.code == cli.ExitOK && json.Unmarshal([]byte(r.stdout), &v) == nil && v.Sequence == 4
	}, 30*time.Second, 100*time.Millisecond)
	return bill{filepath.Join(dir, "address"), box, exec.ID, row, n.JS}, run
}

func TestUsageByHourIsShownExplainedAndVerified(t *testing.T) {
	b, run := billed(t)
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

	for _, id := range []string{b.box.ID, b.row, b.exec} {
		out := run("explain", id).stdout
		require.Contains(t, out, b.box.ID)
		if id == b.box.ID {
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

func TestUsageIsRebuiltFromTheLog(t *testing.T) {
	b, run := billed(t)
	admin := "@" + b.admin
	out := run("rebuild", "--clickhouse", admin).stdout
	require.Contains(t, out, "0 missing, 0 changed, 0 foreign")
	require.Contains(t, out, "swapped: what was made from the log stands now")

	address, err := os.ReadFile(b.admin)
	require.NoError(t, err)
	o, err := ch.ParseDSN(strings.TrimSpace(string(address)))
	require.NoError(t, err)
	conn, err := ch.Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	require.NoError(t, conn.Exec(t.Context(), "ALTER TABLE agents.usage_events_raw DELETE WHERE event_type = 'exec_command' SETTINGS mutations_sync = 2"))
	require.NoError(t, conn.Exec(t.Context(), "ALTER TABLE agents.usage_hourly_raw UPDATE quantity = 1 WHERE meter = 'execs' OR meter = 'exec_cpu' SETTINGS mutations_sync = 2"))
	r := runCLI(nil, nil, "usage", "rebuild", "--clickhouse", admin, "--wait", "0s")
	require.Equal(t, cli.ExitDifferent, r.code, r.stderr)
	require.Contains(t, r.stdout, "1 missing, 0 changed, 0 foreign")
	require.Regexp(t, `acme +\S+ +`+b.row+` +exec_command completed, event 3, 2000 ms, 7 ms CPU +-`, r.stdout)
	require.Regexp(t, `2026-05-31 +acme +exec_cpu +7000 +1`, r.stdout)
	require.NotContains(t, r.stdout+r.stderr, strings.Split(string(address), ":")[2], "the password")
	var j struct {
		Missing int
		Hours   int `json:"hours_different"`
	}
	require.NoError(t, json.Unmarshal([]byte(run("rebuild", "--clickhouse", admin, "--swap", "-o", "json").stdout), &j))
	require.Equal(t, 1, j.Missing)
	require.Equal(t, 1, j.Hours)
	run("verify")
	require.Contains(t, run("explain", b.row).stdout, "exec_cpu")

	// The user without a password may not.
	r = runCLI(nil, nil, "usage", "rebuild")
	require.NotEqual(t, cli.ExitOK, r.code)
	r = runCLI(nil, nil, "usage", "rebuild", "--clickhouse", "@/does/not/exist")
	require.Equal(t, cli.ExitUsage, r.code, r.stderr)
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
