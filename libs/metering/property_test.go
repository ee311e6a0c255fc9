package metering_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/metering"
	"github.com/sandtrail/sandtrail/libs/subject"
)

func genUsage(t *rapid.T) *commonv1.UsageMetrics {
	n := func(name string) uint64 { return rapid.Uint64Range(0, 1<<40).Draw(t, name) }
	return &commonv1.UsageMetrics{
		CpuMs: n("cpu"), MemoryAvgBytes: n("memory"), DiskReadBytes: n("read"), DiskWriteBytes: n("write"), NetworkEgressBytes: n("egress"),
	}
}

// genStory is any events of some sandboxes, whether or not such a life is possible: clocks go back, counters too.
func genStory(t *rapid.T) *story {
	s := &story{}
	at := start
	for range rapid.IntRange(1, 40).Draw(t, "events") {
		b := subject.Sandbox(fmt.Sprint("tenant-", rapid.IntRange(0, 1).Draw(t, "tenant")), ids.Derive("box", fmt.Sprint(rapid.IntRange(0, 2).Draw(t, "box"))))
		at = at.Add(time.Duration(rapid.Int64Range(-10_000, 3*3_600_000).Draw(t, "later")) * time.Millisecond)
		up := rapid.Uint64Range(0, 1<<30).Draw(t, "uptime")
		switch rapid.IntRange(0, 8).Draw(t, "type") {
		case 0:
			s.add(b, at, &eventsv1.SandboxRequested{
				SessionId: b.Tenant, Limits: &eventsv1.Limits{CpuMillis: rapid.Uint32Range(0, 256_000).Draw(t, "cores"), MemoryBytes: up},
				Workspace: &eventsv1.Workspace{SizeBytes: up * 3},
			})
		case 1, 2:
			s.add(b, at, &eventsv1.SandboxReady{})
		case 3:
			s.add(b, at, &eventsv1.SandboxUsageSampled{UptimeMs: up, Usage: genUsage(t)})
		case 4:
			s.add(b, at, &eventsv1.SandboxStopped{UptimeMs: up, Usage: genUsage(t)})
		case 5:
			s.add(b, at, &eventsv1.SandboxFailed{UptimeMs: up, Usage: genUsage(t)})
		case 6:
			s.add(b, at, &eventsv1.SandboxDestroyed{UptimeMs: up, Usage: genUsage(t)})
		case 7:
			s.add(subject.Workspace(b.Tenant, b.ID), at, &eventsv1.WorkspaceDeleted{})
		default:
			x := subject.Exec(b.Tenant, b.ID, ids.Derive("exec", fmt.Sprint(len(s.events))))
			s.add(x, at, &eventsv1.ExecCompleted{WallTimeUs: up, SessionId: rapid.SampledFrom([]string{"", "own"}).Draw(t, "session"), Usage: genUsage(t)})
		}
	}
	return s
}

func TestEventsInAnyOrderAndAgainGiveTheSameQuantities(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genStory(t)
		until := start.Add(100 * time.Hour).UnixMilli()
		want := s.ledger(t).Windows(until)

		order := rapid.Permutation(s.events).Draw(t, "order")
		again := rapid.SliceOf(rapid.SampledFrom(s.events)).Draw(t, "again")
		l := metering.NewLedger()
		cut := rapid.IntRange(0, len(order)).Draw(t, "cut")
		feed(t, l, order[:cut]...)
		l.Windows(until - 1_000_000) // what was asked in between changes nothing
		feed(t, l, again...)
		feed(t, l, order[cut:]...)
		require.Equal(t, want, l.Windows(until))
	})
}

func TestTheHoursOfASpanAddUpToTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genStory(t)
		until := start.Add(1000 * time.Hour).UnixMilli()
		whole := map[metering.Meter]uint64{}
		add := func(span metering.Span) {
			for _, p := range span.Parts {
				if q := span.Whole(p); q > 0 {
					whole[p.Meter] += q
				}
			}
		}
		readings, owners := map[string][]metering.Reading{}, map[string]metering.Owner{}
		for _, e := range s.events {
			agg, err := subject.ParseEvent(e.Subject)
			require.NoError(t, err)
			if b, ok := e.Body.(*eventsv1.SandboxRequested); ok && owners[agg.Tenant+agg.Sandbox] == (metering.Owner{}) {
				owners[agg.Tenant+agg.Sandbox] = metering.OwnerOf(b)
			}
			r, ok := metering.Read(e, agg)
			switch {
			case ok && r.Kind == metering.Ended:
				add(metering.Exec(r))
			case ok:
				readings[agg.Tenant+agg.Sandbox] = append(readings[agg.Tenant+agg.Sandbox], r)
			}
		}
		for k, rs := range readings {
			for _, span := range metering.Spans(rs, owners[k]) {
				add(span)
			}
			if span, ok := metering.Storage(rs, owners[k], until); ok {
				add(span)
			}
		}
		got := map[metering.Meter]uint64{}
		w := s.ledger(t).Windows(until)
		for _, tenant := range []string{"tenant-0", "tenant-1"} {
			for m, v := range w.Total(tenant) {
				got[m] += v
			}
		}
		require.Equal(t, whole, got)
	})
}

// What an hour says does not change when time goes on, unless an event about it comes.
func TestLaterTimeChangesNoHourThatIsOver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genStory(t)
		l := s.ledger(t)
		now := metering.Hour(start.Add(50 * time.Hour).UnixMilli())
		before := l.Windows(now)
		later := l.Windows(now + rapid.Int64Range(0, 1<<33).Draw(t, "later"))
		for k, v := range before {
			require.Equal(t, v, later[k])
		}
		for k := range later {
			if k.Hour < now {
				require.Contains(t, before, k)
			}
		}
	})
}

// Nothing that an event claims makes a span of more than a year, or a panic.
func TestWildFiguresAreBounded(t *testing.T) {
	s := lived()
	s.add(box, start, &eventsv1.SandboxUsageSampled{UptimeMs: math.MaxUint64, Usage: &commonv1.UsageMetrics{CpuMs: math.MaxUint64, MemoryAvgBytes: math.MaxUint64}})
	s.add(subject.Exec("acme", box.ID, ids.New()), start, &eventsv1.ExecCompleted{WallTimeUs: math.MaxUint64})
	w := s.ledger(t).Windows(start.UnixMilli())
	total := w.Total("acme")
	require.Equal(t, uint64(metering.Longest), total[metering.SandboxUptime])
	require.Equal(t, uint64(metering.Longest), total[metering.ExecWall])
	require.Less(t, len(w), 10*366*24)
	require.True(t, slices.IsSortedFunc([]int64{metering.Hour(-1), metering.Hour(0)}, func(a, b int64) int { return int(a - b) }))
}
