package ops_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/ops"
	"github.com/sandtrail/sandtrail/libs/topology"
)

const patience = 30 * time.Second

// scrape is every value by metric and stream; "" where there is no stream.
func scrape(t *testing.T, reg prometheus.Gatherer) map[string]map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	out := map[string]map[string]float64{}
	for _, f := range families {
		require.Equal(t, dto.MetricType_GAUGE, f.GetType())
		out[f.GetName()] = map[string]float64{}
		for _, m := range f.GetMetric() {
			stream := ""
			for _, l := range m.GetLabel() {
				require.Equal(t, "stream", l.GetName())
				stream = l.GetValue()
			}
			out[f.GetName()][stream] = m.GetGauge().GetValue()
		}
	}
	return out
}

func collected(js jetstream.JetStream) *prometheus.Registry {
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(ops.Log(js))
	return reg
}

func TestLogShowsEveryStreamOfOurs(t *testing.T) {
	f := natstest.Start(t)
	_, err := f.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OTHERS", Subjects: []string{"others.>"}})
	require.NoError(t, err)
	for range 3 {
		_, err := f.JS.Publish(t.Context(), "evt.acme.tenant", []byte("an event"))
		require.NoError(t, err)
	}
	kv, err := f.JS.KeyValue(t.Context(), topology.BucketSandbox)
	require.NoError(t, err)
	_, err = kv.Put(t.Context(), "acme.s1", []byte("a view"))
	require.NoError(t, err)

	reg := collected(f.JS)
	got := scrape(t, reg)
	require.Equal(t, map[string]float64{"": 1}, got["sandtrail_log_reachable"])
	for name, values := range got {
		if name == "sandtrail_log_reachable" {
			continue
		}
		var streams []string
		for s := range values {
			streams = append(streams, s)
		}
		if name == "sandtrail_log_limit_bytes" {
			require.Subset(t, topology.Streams(), streams)
			continue
		}
		require.ElementsMatch(t, topology.Streams(), streams, name)
	}
	for _, stream := range topology.Streams() {
		s, err := f.JS.Stream(t.Context(), stream)
		require.NoError(t, err)
		info := s.CachedInfo()
		require.InDelta(t, info.State.Msgs, got["sandtrail_log_messages"][stream], 0, stream)
		require.InDelta(t, info.State.Bytes, got["sandtrail_log_bytes"][stream], 0, stream)
		require.InDelta(t, max(0, info.Config.MaxBytes), got["sandtrail_log_limit_bytes"][stream], 0, stream)
		require.Zero(t, got["sandtrail_log_replicas_behind"][stream], stream)
	}
	require.InDelta(t, 3, got["sandtrail_log_messages"]["EVT"], 0)
	require.Positive(t, got["sandtrail_log_oldest_seconds"]["EVT"])
	require.InDelta(t, 1, got["sandtrail_log_messages"]["KV_sandbox"], 0)
	require.Zero(t, got["sandtrail_log_oldest_seconds"]["CMD"])
}

func TestLogOutOfReachIsShownAndDoesNotHoldUpTheOthers(t *testing.T) {
	f := natstest.Start(t)
	reg := collected(f.JS)
	up := prometheus.NewGauge(prometheus.GaugeOpts{Name: "up", Help: "Another metric."})
	reg.MustRegister(up)
	f.Stop()
	require.Eventually(t, func() bool { return !f.NC.IsConnected() }, patience, 10*time.Millisecond)
	start := time.Now()
	require.Equal(t, map[string]map[string]float64{"sandtrail_log_reachable": {"": 0}, "up": {"": 0}}, scrape(t, reg))
	require.Less(t, time.Since(start), 5*time.Second)

	answer := httptest.NewRecorder()
	ops.Handler(reg).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	require.Equal(t, http.StatusOK, answer.Code)
	require.Contains(t, answer.Body.String(), "sandtrail_log_reachable 0")

	f.Resume()
	require.Eventually(t, func() bool { return len(scrape(t, reg)["sandtrail_log_bytes"]) == len(topology.Streams()) }, patience, 50*time.Millisecond)
}

func TestLogOfAClusterHasNoReplicaBehind(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: a cluster of three servers")
	}
	f := natstest.Cluster(t)
	reg := collected(f.JS)
	require.Eventually(t, func() bool {
		got := scrape(t, reg)["sandtrail_log_replicas_behind"]
		for _, n := range got {
			if n != 0 {
				return false
			}
		}
		return len(got) == len(topology.Streams())
	}, patience, 50*time.Millisecond, "all replicas catch up")
}
