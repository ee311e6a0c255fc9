package runner

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandtrail/sandtrail/libs/sandbox"
)

type metrics struct {
	running prometheus.Gauge
	// ended counts by how: the reason of a completion, or lost.
	ended *prometheus.CounterVec
	// start is from the command's arrival to the toolbox's answer to Start, in seconds.
	start prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		running: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sandtrail_exec_running", Help: "Execs that this worker supervises.",
		}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandtrail_exec_ended_total", Help: "Execs that ended, by reason.",
		}, []string{"reason"}),
		start: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sandtrail_exec_start_seconds", Help: "From the arrival of a command to its program's start.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
	}
	for _, reason := range []string{"lost", sandbox.ReasonExited} {
		m.ended.WithLabelValues(reason) // so that the first one is an increase
	}
	if reg == nil {
		return m
	}
	for _, c := range []prometheus.Collector{m.running, m.ended, m.start} {
		// A second runner of one process shares the registry; its figures are not shown rather than a crash.
		if err := reg.Register(c); err != nil && !errors.As(err, new(prometheus.AlreadyRegisteredError)) {
			continue
		}
	}
	return m
}
