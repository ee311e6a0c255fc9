package project_test

import (
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/services/usage/internal/enginetest"
)

// queries are those of the page about metering, by the comment in their first line.
func queries(t *testing.T) map[string]string {
	t.Helper()
	page, err := os.ReadFile("../../../../docs/METERING.md")
	require.NoError(t, err)
	all := map[string]string{}
	for _, m := range regexp.MustCompile("(?s)```sql\n-- ([^\n]+)\n(.*?)```").FindAllSubmatch(page, -1) {
		all[string(m[1])] = string(m[2])
	}
	require.Len(t, all, len(regexp.MustCompile("```sql").FindAll(page, -1)), "a query without a name, or two with the same")
	return all
}

func TestTheQueriesForBillsGiveTheRightBills(t *testing.T) {
	n, e := natstest.Start(t), enginetest.Start(t, "")
	c := enginetest.Open(t, e.URL())
	acme, other, living := ids.Derive("metering", "1"), ids.Derive("metering", "2"), ids.Derive("metering", "3")
	day := func(d int) time.Time { return time.Date(2026, 5, d, 23, 0, 0, 0, time.UTC) }
	events := map[string]string{}
	exec := func(tenant, sandbox, session string, at time.Time, cpu uint64) {
		m := message(t, subject.Exec(tenant, sandbox, ids.New()).Subject(), at, &eventsv1.ExecCompleted{
			WallTimeUs: cpu * 2000, SessionId: session, UsageEventId: ids.Derive("metering", session, fmt.Sprint(cpu)),
			Usage: &commonv1.UsageMetrics{CpuMs: cpu, MemoryPeakBytes: cpu << 20, DiskReadBytes: cpu + 1, DiskWriteBytes: cpu + 2},
		})
		events[fmt.Sprint(session, cpu)] = m.Header.Get("Nats-Msg-Id")
		publish(t, n.JS, m)
	}
	end := func(tenant, sandbox string, at time.Time, cpu uint64) {
		u := &commonv1.UsageMetrics{CpuMs: cpu, MemoryAvgBytes: 512 << 20}
		subj := subject.Sandbox(tenant, sandbox).Subject()
		publish(t, n.JS, message(t, subj, at.Add(-time.Minute), &eventsv1.SandboxUsageSampled{UptimeMs: 1000, Usage: u}))
		if sandbox != living {
			publish(t, n.JS, message(t, subj, at, &eventsv1.SandboxDestroyed{UptimeMs: 3_600_000, Usage: u}))
		}
	}
	exec("acme", acme, "a", day(24), 100)
	exec("acme", acme, "b", day(24), 30)
	exec("acme", acme, "a", day(25), 7)
	exec("acme", acme, "a", day(32), 5000)
	publish(t, n.JS, message(t, subject.Exec("acme", acme, ids.New()).Subject(), day(32), &eventsv1.ExecLost{Reason: "sandbox_lost"}))
	exec("other", other, "a", day(24), 1)
	end("acme", acme, day(25), 6000)
	end("other", other, day(24), 2)
	end("acme", living, day(26), 11)
	for range 2 {
		stop, _ := run(t, n.JS, c)
		awaitDone(t, n.JS)
		require.NoError(t, stop())
		again(t, n.JS)
	}
	want := map[string]string{
		"execs by tenant and day": "acme\t2026-05-24\t2\t0\t130\t260\t132\t134\n" +
			"acme\t2026-05-25\t1\t0\t7\t14\t8\t9\n" +
			"other\t2026-05-24\t1\t0\t1\t2\t2\t3",
		"sandboxes by tenant and day of their end": "acme\t2026-05-25\t1\t3600000\t6000\t0.5\n" +
			"other\t2026-05-24\t1\t3600000\t2\t0.5",
		"sandboxes that have not ended": "acme\t1\t1000\t11\t2026-05-26 22:59:00.000000000",
		"execs of a tenant by session":  "a\t2\t107\t104857600\nb\t1\t30\t31457280",
		"what a sandbox used beside its execs": acme + "\t6000\t5137\t863\n" +
			living + "\t11\t0\t11",
		"the events behind a bill": ids.Derive("metering", "a", "100") + "\t" + events["a100"] + "\t1\t100\n" +
			ids.Derive("metering", "b", "30") + "\t" + events["b30"] + "\t2\t30\n" +
			ids.Derive("metering", "a", "7") + "\t" + events["a7"] + "\t3\t7",
	}
	got := map[string]string{}
	for name, query := range queries(t) {
		got[name] = ask(t, e.HTTP(), query)
	}
	require.Equal(t, want, got)
}
