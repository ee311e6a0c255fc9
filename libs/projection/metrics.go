package projection

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/telemetry"
)

type metrics struct {
	applied, unknown, malformed prometheus.Counter
	lag                         prometheus.Gauge
	failures, rewinds           prometheus.Counter
	// dead by the reasons of package dlq.
	dead map[string]prometheus.Counter
}

// newMetrics makes or finds the metrics. The label projection is its name, result one of three words.
func newMetrics(reg prometheus.Registerer, name string) (*metrics, error) {
	own := prometheus.Labels{"projection": name}
	events, err := telemetry.Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sandtrail_projection_events_total", ConstLabels: own,
		Help: "Events by what became of them: applied, unknown (a type of a newer program) or malformed.",
	}, []string{"result"}))
	if err != nil {
		return nil, err
	}
	lag, err := telemetry.Register(reg, prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "sandtrail_projection_lag_events", Help: "Events that are in the log and not in the view.", ConstLabels: own,
	}))
	if err != nil {
		return nil, err
	}
	failures, err := telemetry.Register(reg, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sandtrail_projection_failures_total", Help: "Sessions that ended with an error.", ConstLabels: own,
	}))
	if err != nil {
		return nil, err
	}
	dead, err := telemetry.Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sandtrail_projection_dead_letters_total", ConstLabels: own,
		Help: "Events that were set aside, by reason: poison or panic. The view goes without them.",
	}, []string{"reason"}))
	if err != nil {
		return nil, err
	}
	rewinds, err := telemetry.Register(reg, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sandtrail_projection_rewinds_total", Help: "How often the log had lost events that the view had seen.", ConstLabels: own,
	}))
	if err != nil {
		return nil, err
	}
	// Looked up here, so that the first one is an increase and an event costs no look-up.
	return &metrics{
		applied: events.WithLabelValues("applied"), unknown: events.WithLabelValues("unknown"), malformed: events.WithLabelValues("malformed"),
		lag: lag, failures: failures, rewinds: rewinds,
		dead: map[string]prometheus.Counter{
			dlq.ReasonPoison: dead.WithLabelValues(dlq.ReasonPoison), dlq.ReasonPanic: dead.WithLabelValues(dlq.ReasonPanic),
		},
	}, nil
}
