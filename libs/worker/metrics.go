package worker

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/telemetry"
)

type metrics struct {
	messages   *prometheus.CounterVec
	dead       *prometheus.CounterVec
	seconds    prometheus.Observer
	inFlight   prometheus.Gauge
	pullErrors prometheus.Counter
}

func (m *metrics) done(result string) { m.messages.WithLabelValues(result).Inc() }

// newMetrics makes or finds the metrics. Labels are the service and the consumer, which come from the configuration, a result
// and a reason, which are words of this package.
func newMetrics(reg prometheus.Registerer, service, consumer string) (*metrics, error) {
	labels := []string{"service", "consumer"}
	messages, err := telemetry.Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sandtrail_worker_messages_total",
		Help: "Deliveries by what became of them: ack, retry, dead, returned, duplicate or unconfirmed.",
	}, append(labels, "result")))
	if err != nil {
		return nil, err
	}
	dead, err := telemetry.Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sandtrail_worker_dead_letters_total", Help: "Dead letters by reason: poison, attempts or panic.",
	}, append(labels, "reason")))
	if err != nil {
		return nil, err
	}
	seconds, err := telemetry.Register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "sandtrail_worker_handler_seconds", Help: "How long handlers took.",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 9),
	}, labels))
	if err != nil {
		return nil, err
	}
	inFlight, err := telemetry.Register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "sandtrail_worker_held_messages", Help: "Messages that run or wait for a lane.",
	}, labels))
	if err != nil {
		return nil, err
	}
	pullErrors, err := telemetry.Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sandtrail_worker_pull_errors_total", Help: "Pulls that failed.",
	}, labels))
	if err != nil {
		return nil, err
	}
	own := prometheus.Labels{"service": service, "consumer": consumer}
	m := &metrics{
		messages: messages.MustCurryWith(own), dead: dead.MustCurryWith(own), seconds: seconds.With(own),
		inFlight: inFlight.With(own), pullErrors: pullErrors.With(own),
	}
	// A first dead letter is an increase only where zero was there before.
	for _, reason := range []string{dlq.ReasonPoison, dlq.ReasonAttempts, dlq.ReasonPanic} {
		m.dead.WithLabelValues(reason)
	}
	return m, nil
}
