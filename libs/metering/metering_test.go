package metering_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/metering"
	"github.com/sandtrail/sandtrail/libs/subject"
)

const gib = 1 << 30

// start is 10 minutes before the end of a month.
var start = time.Date(2026, 5, 31, 23, 50, 0, 0, time.UTC)

// story is the events of a log in the order in which they were stored.
type story struct {
	events []envelope.Recorded
}

func (s *story) add(agg subject.Aggregate, at time.Time, body proto.Message) {
	s.events = append(s.events, envelope.Recorded{
		Meta: envelope.Meta{Time: at, Tenant: agg.Tenant}, Subject: agg.Subject(), Seq: uint64(len(s.events) + 1), Body: body,
	})
}

func (s *story) ledger(t require.TestingT) *metering.Ledger {
	l := metering.NewLedger()
	feed(t, l, s.events...)
	return l
}

func feed(t require.TestingT, l *metering.Ledger, events ...envelope.Recorded) {
	for _, e := range events {
		agg, err := subject.ParseEvent(e.Subject)
		require.NoError(t, err)
		l.Add(e, agg)
	}
}

var box = subject.Sandbox("acme", ids.Derive("metering", "box"))

func after(d time.Duration) time.Time { return start.Add(d) }

func millis(d time.Duration) uint64 { return uint64(d / time.Millisecond) }

func usage(cpu time.Duration) *commonv1.UsageMetrics {
	return &commonv1.UsageMetrics{CpuMs: millis(cpu), MemoryAvgBytes: gib / 2}
}

// lived begins a story with a sandbox of half a core, 1 GiB of memory and 2 GiB of disk that is ready at start.
func lived() *story {
	s := &story{}
	s.add(box, after(-time.Second), &eventsv1.SandboxRequested{
		SessionId: "s", Limits: &eventsv1.Limits{CpuMillis: 500, MemoryBytes: gib}, Workspace: &eventsv1.Workspace{SizeBytes: 2 * gib},
	})
	s.add(box, start, &eventsv1.SandboxReady{})
	return s
}

func sampled(up, cpu time.Duration) proto.Message {
	return &eventsv1.SandboxUsageSampled{UptimeMs: millis(up), Usage: usage(cpu)}
}

func TestUsageOverTheEndOfAMonthIsSplitThere(t *testing.T) {
	s := lived()
	s.add(box, after(20*time.Minute), sampled(20*time.Minute, time.Minute))
	got := s.ledger(t).Windows(after(20 * time.Minute).UnixMilli())
	for _, hour := range []int64{metering.Hour(start.UnixMilli()), time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC).UnixMilli()} {
		for m, want := range map[metering.Meter]uint64{
			metering.SandboxUptime: 600_000, metering.SandboxCPUAllocated: 300_000_000, metering.SandboxCPUUsed: 30_000_000,
			metering.SandboxMemoryAllocated: 1024 * 600_000, metering.SandboxMemoryUsed: 512 * 600_000, metering.WorkspaceStorage: 2048 * 600_000,
		} {
			require.Equal(t, want, got[metering.Key{Tenant: "acme", Sandbox: box.ID, Session: "s", Meter: m, Hour: hour}], "%s", m)
		}
	}
	require.Len(t, got, 12)
}

func TestAPauseCostsStorageAlone(t *testing.T) {
	s := lived()
	s.add(box, after(time.Minute), &eventsv1.SandboxStopped{UptimeMs: 60_000, Usage: usage(time.Second)})
	s.add(box, after(time.Hour), &eventsv1.SandboxStarting{Attempt: 2})
	s.add(box, after(2*time.Hour), &eventsv1.SandboxReady{})
	s.add(box, after(2*time.Hour+time.Minute), &eventsv1.SandboxDestroyed{UptimeMs: 120_000, Usage: usage(3 * time.Second)})
	s.add(subject.Workspace("acme", box.ID), after(2*time.Hour+time.Minute), &eventsv1.WorkspaceReleased{})
	s.add(subject.Workspace("acme", box.ID), after(5*time.Hour), &eventsv1.WorkspaceDeleted{})
	w := s.ledger(t).Windows(after(100 * time.Hour).UnixMilli())
	require.Equal(t, map[metering.Meter]uint64{
		metering.SandboxUptime: 120_000, metering.SandboxCPUAllocated: 60_000_000, metering.SandboxCPUUsed: 3_000_000,
		metering.SandboxMemoryAllocated: 1024 * 120_000, metering.SandboxMemoryUsed: 512 * 120_000,
		metering.WorkspaceStorage: 2048 * millis(5*time.Hour),
	}, w.Total("acme"))
	paused := metering.Key{Tenant: "acme", Sandbox: box.ID, Session: "s", Meter: metering.SandboxUptime, Hour: metering.Hour(after(time.Hour).UnixMilli())}
	require.NotContains(t, w, paused)
}

// A host that died takes its sandboxes with it at a moment that nobody saw: what is billed after the last sample is bounded, however
// late the reconciler finds it. A host whose services alone were away is billed in full, because its sandbox is found alive.
func TestADestroyThatNeverCameIsClosedByTheReconciler(t *testing.T) {
	for _, c := range []struct {
		name string
		end  proto.Message
		want time.Duration
	}{
		{"found dead after six days", &eventsv1.SandboxFailed{UptimeMs: millis(145 * time.Hour)}, time.Hour + 6*time.Minute},
		{"found alive after six days", sampled(145*time.Hour, time.Second), 145 * time.Hour},
		{"found dead at once", &eventsv1.SandboxFailed{UptimeMs: millis(time.Hour + time.Second)}, time.Hour + time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := lived()
			s.add(box, after(time.Hour), sampled(time.Hour, time.Second))
			s.add(box, after(145*time.Hour), c.end)
			s.add(box, after(146*time.Hour), &eventsv1.SandboxDestroyed{UptimeMs: millis(c.want)})
			total := s.ledger(t).Windows(after(146 * time.Hour).UnixMilli()).Total("acme")
			require.Equal(t, millis(c.want), total[metering.SandboxUptime])
			require.Equal(t, millis(c.want)*500, total[metering.SandboxCPUAllocated])
		})
	}
}

func TestAnExecIsOfTheHoursInWhichItRan(t *testing.T) {
	s := lived()
	x := subject.Exec("acme", box.ID, ids.Derive("metering", "exec"))
	s.add(x, after(30*time.Minute), &eventsv1.ExecCompleted{
		WallTimeUs: 40 * 60 * 1e6, SessionId: "own", Usage: usage(40 * time.Second),
		Stdout: &eventsv1.Output{Bytes: 100, DroppedBytes: 60}, Stderr: &eventsv1.Output{Bytes: 1},
	})
	w := s.ledger(t).Windows(start.UnixMilli())
	at := func(m metering.Meter, hour time.Time) uint64 {
		return w[metering.Key{Tenant: "acme", Sandbox: box.ID, Session: "own", Meter: m, Hour: metering.Hour(hour.UnixMilli())}]
	}
	june := after(10 * time.Minute)
	require.Equal(t, []uint64{600_000 * 2, 600_000 * 2, 20_000_000, 20_000_000, 0, 1, 20, 21}, []uint64{
		at(metering.ExecWall, start), at(metering.ExecWall, june), at(metering.ExecCPU, start), at(metering.ExecCPU, june),
		at(metering.Execs, start), at(metering.Execs, june), at(metering.OutputKept, start), at(metering.OutputKept, june),
	})
}

func TestAnInvoiceHasALineForEachPrice(t *testing.T) {
	may, june := metering.Hour(start.UnixMilli()), metering.Hour(after(10*time.Minute).UnixMilli())
	w := metering.Windows{}
	for i, hour := range []int64{may, june, june + 3_600_000} {
		for _, tenant := range []string{"acme", "other"} {
			w[metering.Key{Tenant: tenant, Sandbox: fmt.Sprint(i), Meter: metering.SandboxUptime, Hour: hour}] = 1_000
		}
	}
	p := func(tenant string, from int64, version uint32, nanos uint64) metering.Price {
		return metering.Price{Tenant: tenant, Meter: metering.SandboxUptime, From: from, Version: version, Nanos: nanos, Per: 3_600_000, Currency: "EUR"}
	}
	lines := metering.Invoice(w, []metering.Price{
		p("", 0, 1, 7200), p("", june, 1, 9999), p("", june, 2, 3600), p("acme", june+3_600_000, 1, 1), p("other", june+9*3_600_000, 1, 5),
	})
	got := map[string]string{}
	for k, l := range lines {
		got[fmt.Sprint(k.Tenant, " ", time.UnixMilli(k.Month).UTC().Month(), " ", k.Price.Nanos)] = fmt.Sprint(l.Quantity, " ", l.Nanos)
	}
	require.Equal(t, map[string]string{
		"acme May 7200": "1000 2", "acme June 3600": "1000 1", "acme June 1": "1000 0",
		"other May 7200": "1000 2", "other June 3600": "2000 2",
	}, got)
}
