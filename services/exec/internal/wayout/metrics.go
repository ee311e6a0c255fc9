package wayout

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandtrail/sandtrail/libs/egress"
)

type metrics struct {
	decisions *prometheus.CounterVec
	bytes     *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandtrail_exec_egress_total", Help: "Connections that programs of sandboxes asked for, by how it ended: open, or the reason why not.",
		}, []string{"outcome"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandtrail_exec_egress_bytes_total", Help: "Bytes of connections out of sandboxes that have ended, by direction.",
		}, []string{"direction"}),
	}
	for _, reason := range []string{
		"open", egress.NotAllowed, egress.BadTarget, egress.NotPublic, egress.Unresolved, egress.Unreachable, egress.Busy,
	} {
		m.decisions.WithLabelValues(reason) // so that the first one is an increase
	}
	for _, direction := range []string{"out", "in"} {
		m.bytes.WithLabelValues(direction)
	}
	if reg == nil {
		return m
	}
	for _, c := range []prometheus.Collector{m.decisions, m.bytes} {
		// A second service of one process shares the registry; its figures are not shown rather than a crash.
		if err := reg.Register(c); err != nil && !errors.As(err, new(prometheus.AlreadyRegisteredError)) {
			continue
		}
	}
	return m
}

func (m *metrics) count(d decision, n, out, in uint64) {
	outcome := d.reason
	if outcome == "" {
		outcome = "open"
	}
	m.decisions.WithLabelValues(outcome).Add(float64(n))
	m.bytes.WithLabelValues("out").Add(float64(out))
	m.bytes.WithLabelValues("in").Add(float64(in))
}
