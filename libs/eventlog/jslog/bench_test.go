package jslog

import (
	"strconv"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// The floor: what nats.go needs to publish the same message without an expectation.
func BenchmarkRawPublish(b *testing.B) {
	f := natstest.Start(b)
	publish := func(b *testing.B) {
		agg := sandbox()
		m, _, err := envelope.Encode(agg.Subject(), withTenant(newEvents(1)[0], agg.Tenant), nil)
		require.NoError(b, err)
		m.Header.Del(nats.MsgIdHdr)
		_, err = f.JS.PublishMsg(b.Context(), m)
		require.NoError(b, err)
	}
	b.Run("x1", func(b *testing.B) {
		for b.Loop() {
			publish(b)
		}
		perSecond(b, 1)
	})
	b.Run("x64", func(b *testing.B) { parallel(b, 64, func() { publish(b) }) })
}

func withTenant(e envelope.Event, tenant string) envelope.Event {
	e.Tenant = tenant
	return e
}

func BenchmarkAppend(b *testing.B) {
	f := natstest.Start(b)
	log := New(f.JS)
	publish := func(b *testing.B, n int) {
		_, err := log.Append(b.Context(), sandbox(), eventlog.Tail{}, newEvents(n)...)
		require.NoError(b, err)
	}
	b.Run("x1", func(b *testing.B) {
		for b.Loop() {
			publish(b, 1)
		}
		perSecond(b, 1)
	})
	b.Run("x64", func(b *testing.B) { parallel(b, 64, func() { publish(b, 1) }) })
	b.Run("batch of 3", func(b *testing.B) {
		for b.Loop() {
			publish(b, 3)
		}
		perSecond(b, 3)
	})
	b.Run("batch of 100", func(b *testing.B) {
		for b.Loop() {
			publish(b, 100)
		}
		perSecond(b, 100)
	})
}

func BenchmarkLoad(b *testing.B) {
	f := natstest.Start(b)
	log := New(f.JS)
	for _, n := range []int{1, 20, 1000} {
		agg := sandbox()
		mustAppendB(b, log, agg, n)
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				h, err := log.Load(b.Context(), agg)
				require.NoError(b, err)
				require.Len(b, h.Events, n)
			}
		})
	}
	agg := sandbox()
	mustAppendB(b, log, agg, 1)
	b.Run("raw last message", func(b *testing.B) {
		s, err := f.JS.Stream(b.Context(), "EVT")
		require.NoError(b, err)
		for b.Loop() {
			_, err := s.GetLastMsgForSubject(b.Context(), agg.Subject())
			require.NoError(b, err)
		}
	})
}

// Three servers in one process on the same cores: read ratios, not capacities.
func BenchmarkCluster(b *testing.B) {
	f := natstest.Cluster(b)
	log := New(f.JS)
	publish := func() {
		_, err := log.Append(b.Context(), sandbox(), eventlog.Tail{}, newEvents(1)...)
		require.NoError(b, err)
	}
	b.Run("append x1", func(b *testing.B) {
		for b.Loop() {
			publish()
		}
		perSecond(b, 1)
	})
	b.Run("append x64", func(b *testing.B) { parallel(b, 64, publish) })
	agg := sandbox()
	mustAppendB(b, log, agg, 20)
	b.Run("load 20", func(b *testing.B) {
		for b.Loop() {
			_, err := log.Load(b.Context(), agg)
			require.NoError(b, err)
		}
	})
}

func mustAppendB(b *testing.B, log *Log, agg subject.Aggregate, n int) {
	_, err := log.Append(b.Context(), agg, eventlog.Tail{}, newEvents(n)...)
	require.NoError(b, err)
}

func parallel(b *testing.B, n int, do func()) {
	b.SetParallelism(max(1, n/2))
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			do()
		}
	})
	perSecond(b, 1)
}

func perSecond(b *testing.B, events int) {
	b.ReportMetric(float64(b.N*events)/b.Elapsed().Seconds(), "events/s")
}
