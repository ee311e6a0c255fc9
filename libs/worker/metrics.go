package worker

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
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
	messages, err := register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sandtrail_worker_messages_total",
		Help: "Deliveries by what became of them: ack, retry, dead, returned, duplicate or unconfirmed.",
	}, append(labels, "result")))
	if err != nil {
		return nil, err
	}
	dead, err := register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sandtrail_worker_dead_letters_total", Help: "Dead letters by reason: poison, attempts or panic.",
	}, append(labels, "reason")))
	if err != nil {
		return nil, err
	}
	seconds, err := register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "sandtrail_worker_handler_seconds", Help: "How long handlers took.",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 9),
	}, labels))
	if err != nil {
		return nil, err
	}
	inFlight, err := register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "sandtrail_worker_held_messages", Help: "Messages that run or wait for a lane.",
	}, labels))
	if err != nil {
		return nil, err
	}
	pullErrors, err := register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
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
	for _, reason := range []string{reasonPoison, reasonAttempts, reasonPanic} {
		m.dead.WithLabelValues(reason)
	}
	return m, nil
}

// register adds a collector, or finds the equal one that another run in this process added.
func register[C prometheus.Collector](reg prometheus.Registerer, c C) (C, error) {
	if reg == nil {
		return c, nil
	}
	err := reg.Register(c)
	var there prometheus.AlreadyRegisteredError
	if errors.As(err, &there) {
		if old, ok := there.ExistingCollector.(C); ok {
			return old, nil
		}
	}
	if err != nil {
		return c, fmt.Errorf("register metrics: %w", err)
	}
	return c, nil
}
