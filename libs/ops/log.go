package ops

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandtrail/sandtrail/libs/topology"
)

// logTimeout bounds one look at the log. A cluster takes four seconds to tell of its streams while one has no leader.
const logTimeout = 6 * time.Second

var (
	logReachable = prometheus.NewDesc("sandtrail_log_reachable", "1 while JetStream tells about its streams, 0 while it does not.", nil, nil)
	logBytes     = describe("sandtrail_log_bytes", "Bytes that a stream takes up.")
	logMessages  = describe("sandtrail_log_messages", "Messages in a stream.")
	logLimit     = describe("sandtrail_log_limit_bytes", "Bytes that a stream may take up; absent where there is no limit.")
	logOldest    = describe("sandtrail_log_oldest_seconds", "Age of the oldest message of a stream; 0 where it has none.")
	logBehind    = describe("sandtrail_log_replicas_behind", "Replicas of a stream that are offline or not up to date; a missing leader is one too.")
)

func describe(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"stream"}, nil)
}

// logCollector shows how large the streams of topology are. Each process that has one shows the same figures.
type logCollector struct {
	js    jetstream.JetStream
	known map[string]bool
}

// Log collects the size, limits and replicas of every stream of package topology, those behind buckets included: the server is
// asked once for each scrape, and streams of others on it are left out. While it does not answer there is only
// sandtrail_log_reachable, at 0.
func Log(js jetstream.JetStream) prometheus.Collector {
	l := &logCollector{js: js, known: map[string]bool{}}
	for _, name := range topology.Streams() {
		l.known[name] = true
	}
	return l
}

// Describe implements prometheus.Collector.
func (l *logCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{logReachable, logBytes, logMessages, logLimit, logOldest, logBehind} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (l *logCollector) Collect(to chan<- prometheus.Metric) {
	reachable := 0.0
	if streams, ok := l.list(); ok {
		reachable = 1
		for _, s := range streams {
			collect(to, s)
		}
	}
	to <- prometheus.MustNewConstMetric(logReachable, prometheus.GaugeValue, reachable)
}

// list is false where not every stream could be asked for: half a list would look like streams that are gone.
func (l *logCollector) list() ([]*jetstream.StreamInfo, bool) {
	// A request on a broken connection waits in a buffer for its timeout, and the scrape with it.
	if !l.js.Conn().IsConnected() {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(context.Background(), logTimeout)
	defer cancel()
	all := l.js.ListStreams(ctx)
	var ours []*jetstream.StreamInfo
	for s := range all.Info() {
		if l.known[s.Config.Name] {
			ours = append(ours, s)
		}
	}
	return ours, all.Err() == nil
}

func collect(to chan<- prometheus.Metric, s *jetstream.StreamInfo) {
	gauge := func(d *prometheus.Desc, v float64) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, s.Config.Name)
	}
	gauge(logBytes, float64(s.State.Bytes))
	gauge(logMessages, float64(s.State.Msgs))
	if s.Config.MaxBytes > 0 {
		gauge(logLimit, float64(s.Config.MaxBytes))
	}
	oldest := 0.0
	if s.State.Msgs > 0 {
		oldest = max(0, time.Since(s.State.FirstTime).Seconds())
	}
	gauge(logOldest, oldest)
	gauge(logBehind, float64(behind(s.Cluster)))
}

// behind counts the replicas that do not have everything; a stream of a single server has none.
func behind(c *jetstream.ClusterInfo) int {
	if c == nil {
		return 0
	}
	n := 0
	if c.Leader == "" {
		n++
	}
	for _, r := range c.Replicas {
		if r.Offline || !r.Current {
			n++
		}
	}
	return n
}
