package project_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
	"github.com/sandtrail/sandtrail/services/usage/internal/enginetest"
)

const benchmarkEvents = 100_000

// BenchmarkProjection projects a log of 100,000 completed execs, and inserts the same number of like rows in blocks of
// 10,000 into the same table for comparison, one after the other in each iteration. It reports medians.
func BenchmarkProjection(b *testing.B) {
	n := natstest.Start(b)
	var messages []*nats.Msg
	var rows []clickhouse.Row
	for i := range benchmarkEvents {
		tenant, sandbox, exec := fmt.Sprintf("tenant-%d", i/200%50), ids.Derive("bench", fmt.Sprint(i/200)), ids.New()
		if i%200 == 0 {
			messages = append(messages, message(b, subject.Sandbox(tenant, sandbox).Subject(), start, &eventsv1.SandboxRequested{
				SandboxId: sandbox, SessionId: "session-" + sandbox,
			}))
		}
		code := int32(0)
		messages = append(messages, message(b, subject.Exec(tenant, sandbox, exec).Subject(), start.Add(time.Duration(i)), &eventsv1.ExecCompleted{
			WallTimeUs: uint64(i), Reason: "exited", SessionId: "session-" + sandbox, UsageMethod: "cgroup",
			Usage: &commonv1.UsageMetrics{CpuMs: uint64(i), MemoryPeakBytes: uint64(i) << 12},
		}))
		rows = append(rows, clickhouse.Row{
			ID: uuid.New(), Type: clickhouse.ExecCommand, Outcome: "completed", Tenant: tenant, Session: "session-" + sandbox,
			Sandbox: uuid.MustParse(sandbox), Exec: uuid.MustParse(exec), OccurredAt: start.Add(time.Duration(i)), CPUMillis: uint64(i),
			MemoryPeak: uint64(i) << 12, WallMillis: uint64(i), ExitCode: &code, Reason: "exited", Method: "cgroup", EventID: uuid.New(), Seq: uint64(i), Schema: 1,
		})
	}
	for at := 0; at < len(messages); at += 2000 {
		publish(b, n.JS, messages[at:min(at+2000, len(messages))]...)
	}
	messages = nil
	var raw, projected, ratio []float64
	for b.Loop() {
		c := enginetest.Open(b, enginetest.Start(b, "").URL())
		begin := time.Now()
		for at := 0; at < len(rows); at += 10_000 {
			require.NoError(b, c.Insert(b.Context(), clickhouse.Rows(rows[at:at+10_000]...)))
		}
		raw = append(raw, benchmarkEvents/time.Since(begin).Seconds())
		require.NoError(b, c.Down(b.Context()))
		require.NoError(b, c.Up(b.Context()))
		again(b, n.JS)
		begin = time.Now()
		stop, _ := run(b, n.JS, c)
		awaitDone(b, n.JS)
		projected = append(projected, benchmarkEvents/time.Since(begin).Seconds())
		require.NoError(b, stop())
		last := len(raw) - 1
		ratio = append(ratio, projected[last]/raw[last])
		b.Logf("raw %.0f, projected %.0f rows a second: %.2f", raw[last], projected[last], ratio[last])
	}
	for unit, all := range map[string][]float64{"raw-rows/s": raw, "projected-rows/s": projected, "ratio": ratio} {
		slices.Sort(all)
		b.ReportMetric(all[len(all)/2], unit)
	}
	b.ReportMetric(0, "ns/op")
}
