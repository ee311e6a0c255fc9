package project

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	rows, dead, retries, rewinds prometheus.Counter
	// free and unknown are events that make no row.
	free, unknown   prometheus.Counter
	insert          prometheus.Histogram
	pending, behind prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	const ns, sub = "sandtrail", "usage"
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help})
	}
	skipped := prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: ns, Subsystem: sub, Name: "skipped_total", Help: "Events that make no row: free of cost, or of an unknown type.",
	}, []string{"why"})
	m := &metrics{
		rows:    counter("rows_total", "Rows inserted into ClickHouse, repetitions included."),
		dead:    counter("dead_letters_total", "Events that could not become a row and went to the dead letters."),
		retries: counter("retries_total", "Failed attempts to project a batch."),
		rewinds: counter("rewinds_total", "How often the log had lost events that there were rows of, so that all rows were made again."),
		free:    skipped.WithLabelValues("free"),
		unknown: skipped.WithLabelValues("unknown"),
		insert: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: ns, Subsystem: sub, Name: "insert_seconds", Help: "Time of an insert.", Buckets: prometheus.ExponentialBuckets(0.002, 2, 14),
		}),
		pending: gauge("pending_events", "Events that the projector has not finished."),
		behind:  gauge("behind_seconds", "Age of the last projected event while others wait; 0 when none does."),
	}
	for _, c := range []prometheus.Collector{m.rows, m.dead, m.retries, m.rewinds, skipped, m.insert, m.pending, m.behind} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}
