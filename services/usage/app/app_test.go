package app_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/metering"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/services/usage/app"
)

func TestMain(m *testing.M) {
	if app.IsEngine() {
		os.Exit(app.EngineMain())
	}
	if os.Getenv(childEnv) != "" {
		os.Exit(child())
	}
	os.Exit(m.Run())
}

func TestValidateReportsEveryMistake(t *testing.T) {
	err := app.Config{Dir: "relative", NativePort: 70_000, HTTPPort: -2}.Validate()
	for _, part := range []string{"dir: must be absolute", "native port: 70000", "http port: -2"} {
		require.ErrorContains(t, err, part)
	}
	require.ErrorContains(t, app.Config{}.Validate(), "needs a directory")
	err = app.Config{ClickHouse: "clickhouse://me:hunter2@host:port"}.Validate()
	require.ErrorContains(t, err, "clickhouse:")
	require.NotContains(t, err.Error(), "hunter2")
	require.NoError(t, app.Config{ClickHouse: "clickhouse://me:hunter2@host:9000/default"}.Validate())
}

func TestAnExecsRowIsAnsweredAsSoonAsItIsProjected(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: a real ClickHouse")
	}
	n := natstest.Start(t)
	a, err := app.New(t.Context(), app.Config{Dir: t.TempDir(), NativePort: -1, HTTPPort: -1, RollEvery: 100 * time.Millisecond},
		app.Deps{NC: n.NC, JS: n.JS, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Progress: func(s string) { t.Log(s) }})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	require.NoError(t, a.Health(t.Context()))
	require.True(t, a.Address().Embedded)

	sandbox, exec, usage := ids.New(), ids.New(), ids.New()
	m, _, err := envelope.Encode(subject.Exec("acme", sandbox, exec).Subject(), envelope.Event{
		Meta: envelope.Meta{ID: ids.New(), Time: time.Now()},
		Body: &eventsv1.ExecCompleted{ExitCode: 3, UsageEventId: usage, SessionId: "s", WallTimeUs: 5000, Usage: &commonv1.UsageMetrics{CpuMs: 4}},
	}, nil)
	require.NoError(t, err)
	_, err = n.JS.PublishMsg(t.Context(), m)
	require.NoError(t, err)

	ask := func(q *commandsv1.UsageQuery) *commandsv1.UsageReply {
		data, err := proto.Marshal(q)
		require.NoError(t, err)
		answer, err := n.NC.Request(subject.Usage(), data, 5*time.Second)
		require.NoError(t, err)
		reply := &commandsv1.UsageReply{}
		require.NoError(t, proto.Unmarshal(answer.Data, reply))
		return reply
	}
	require.Eventually(t, func() bool {
		return len(ask(&commandsv1.UsageQuery{TenantId: "acme", ExecId: exec}).GetRows()) == 1
	}, 2*time.Second, 20*time.Millisecond)
	row := ask(&commandsv1.UsageQuery{TenantId: "acme", SandboxId: sandbox}).GetRows()[0]
	require.Equal(t, fmt.Sprint(usage, "exec_command", 3, 4, 5), fmt.Sprint(row.GetId(), row.GetEventType(), row.GetExitCode(), row.GetUsage().GetCpuMs(), row.GetWallTimeMs()))
	require.Empty(t, ask(&commandsv1.UsageQuery{TenantId: "other", SandboxId: sandbox}).GetRows(), "another tenant's row")
	// What it cost is in its hour soon after.
	require.Eventually(t, func() bool {
		w, _, err := app.Hours(t.Context(), "clickhouse://default@"+a.Address().Native, "acme", false)
		require.NoError(t, err)
		return w.Total("acme")[metering.ExecCPU] == 4000
	}, 20*time.Second, 50*time.Millisecond)
	bad := ask(&commandsv1.UsageQuery{TenantId: "acme", SandboxId: "x", Limit: 1 << 31})
	require.EqualValues(t, codes.InvalidArgument, bad.GetGrpcCode())
	require.Len(t, bad.GetError().GetFields(), 2)

	cancel()
	require.NoError(t, <-ended)
	require.NoError(t, a.Close(), "a second close")
	require.Error(t, a.Health(t.Context()))
}
