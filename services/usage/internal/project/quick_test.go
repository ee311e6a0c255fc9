package project

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/feed"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

// number is small, large or zero.
func number(r *rand.Rand) uint64 { return r.Uint64() >> r.IntN(65) }

func word(r *rand.Rand) string { return []string{"", "exited", "ä", "a longer word"}[r.IntN(4)] }

// ended is any ExecCompleted, each field left out now and then.
func ended(r *rand.Rand) *eventsv1.ExecCompleted {
	e := &eventsv1.ExecCompleted{
		ExitCode: int32(number(r)), Signal: int32(number(r)), WallTimeUs: number(r), Reason: word(r), Message: word(r), LastChunk: number(r),
		SessionId: word(r), UsageMethod: word(r),
	}
	if r.IntN(8) > 0 {
		e.UsageEventId = ids.New()
	}
	if r.IntN(8) > 0 {
		e.Usage = &commonv1.UsageMetrics{
			CpuMs: number(r), MemoryPeakBytes: number(r), MemoryAvgBytes: number(r), DiskReadBytes: number(r), DiskWriteBytes: number(r),
			NetworkEgressBytes: number(r), NetworkIngressBytes: number(r), GpuMs: number(r), GpuMemoryBytes: number(r),
		}
	}
	for _, o := range []**eventsv1.Output{&e.Stdout, &e.Stderr} {
		if r.IntN(4) == 0 {
			continue
		}
		*o = &eventsv1.Output{Bytes: number(r), DroppedBytes: number(r), Sha256: make([]byte, r.IntN(33))}
		if r.IntN(8) == 0 {
			(*o).Gaps = []*eventsv1.Gap{{}}
		}
	}
	return e
}

// spoil changes an event so that it may be none any more.
func spoil(r *rand.Rand, m *nats.Msg) {
	names := []string{
		envelope.HeaderID, envelope.HeaderTime, envelope.HeaderSchema, envelope.HeaderTenant, envelope.HeaderDigest,
	}
	switch r.IntN(4) {
	case 0:
		m.Header.Set(names[r.IntN(len(names))], []string{"", "x", "0", "2026-05-01T10:00:00Z", "1999-05-01T10:00:00Z", "acme"}[r.IntN(6)])
	case 1:
		m.Data = m.Data[:r.IntN(len(m.Data)+1)]
	case 2:
		m.Data = append(m.Data, m.Data[:r.IntN(len(m.Data)+1)]...)
	default:
		if len(m.Data) > 0 {
			m.Data[r.IntN(len(m.Data))] = byte(r.Uint32())
		}
	}
}

// TestTheQuickWayMakesTheSameRow compares it with the general one, on events that are whole and on such that are not.
func TestTheQuickWayMakesTheSameRow(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r, w := rand.New(rand.NewPCG(seed, 0)), newWords()
	var quick, refused int
	for i := range 40_000 {
		agg := subject.Exec("acme", ids.New(), ids.New())
		body := ended(r)
		m, _, err := envelope.Encode(agg.Subject(), envelope.Event{
			Meta: envelope.Meta{ID: ids.New(), Tenant: "acme", Time: time.Unix(1_780_000_000, int64(r.IntN(1e9)))}, Body: body,
		}, nil)
		require.NoError(t, err)
		whole := i%2 == 0
		if !whole {
			spoil(r, m)
		}
		owner := Owner{Session: word(r), Org: word(r)}
		var got clickhouse.Row
		if !w.quick(&got, feed.Message{Subject: m.Subject, Seq: 7, Data: m.Data}, envelope.HeadOf(m.Header), agg, owner) {
			plain := body.GetUsageEventId() != "" && body.GetStdout().GetGaps() == nil && body.GetStderr().GetGaps() == nil
			require.False(t, whole && plain, "a plain event was not known: %v", body)
			refused++
			continue
		}
		quick++
		e, err := envelope.Decode(m.Subject, 7, m.Header, m.Data)
		require.NoError(t, err, "seed %d", seed)
		want, err := Map(e, agg, owner)
		require.NoError(t, err, "seed %d", seed)
		require.Equal(t, want, got, "seed %d: %v", seed, e.Body)
	}
	require.Positive(t, quick)
	require.Positive(t, refused)
}

func TestWordsAreBounded(t *testing.T) {
	w := newWords()
	for range 3 * wordsKept {
		w.of(ids.New())
	}
	require.LessOrEqual(t, len(w.known), wordsKept)
	w.of(string(make([]byte, longWord+1)))
	require.NotContains(t, w.known, string(make([]byte, longWord+1)))
}

func TestTheQuickWayAllocatesNothing(t *testing.T) {
	agg := subject.Exec("acme", ids.New(), ids.New())
	m, _, err := envelope.Encode(agg.Subject(), envelope.Event{
		Meta: envelope.Meta{ID: ids.New(), Tenant: "acme", Time: time.Now()},
		Body: &eventsv1.ExecCompleted{
			ExitCode: 1, Reason: "exited", UsageEventId: ids.New(), SessionId: "s", UsageMethod: "cgroup", Usage: &commonv1.UsageMetrics{CpuMs: 5},
			Stdout: &eventsv1.Output{Bytes: 1, Sha256: make([]byte, 32)},
		},
	}, nil)
	require.NoError(t, err)
	f, h, w := feed.Message{Subject: m.Subject, Seq: 7, Data: m.Data}, envelope.HeadOf(m.Header), newWords()
	var row clickhouse.Row
	require.Zero(t, testing.AllocsPerRun(100, func() {
		row = clickhouse.Row{}
		require.True(t, w.quick(&row, f, h, agg, Owner{}))
	}))
}
