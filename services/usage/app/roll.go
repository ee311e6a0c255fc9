package app

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandtrail/sandtrail/services/usage/internal/budget"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

const (
	// rollEvery is how often hours are added up, rollTime bounds one time.
	rollEvery = 15 * time.Second
	rollTime  = 10 * time.Minute
)

// rollups are the metrics of adding up.
type rollups struct {
	failures prometheus.Counter
	seconds  prometheus.Histogram
	seq      prometheus.Gauge
	behind   prometheus.Gauge
	// budgets counts failed looks at budgets.
	budgets prometheus.Counter
	// done is when a pass succeeded last, or the service began.
	done time.Time
}

func newRollups(r prometheus.Registerer) (*rollups, error) {
	const ns, sub = "sandtrail", "usage"
	m := &rollups{
		done: time.Now(),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "rollup_failures_total", Help: "Failed attempts to add hours up; they are late then, not wrong.",
		}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: ns, Subsystem: sub, Name: "rollup_seconds", Help: "Time of adding up the hours that had changed.", Buckets: prometheus.ExponentialBuckets(0.01, 2, 14),
		}),
		seq: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: ns, Subsystem: sub, Name: "rollup_sequence", Help: "Sequence of the log up to which this service has added hours up.",
		}),
	}
	m.behind = prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: ns, Subsystem: sub, Name: "rollup_behind_seconds", Help: "Since when this service has tried in vain to add hours up; 0 when it has not.",
	})
	m.budgets = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: ns, Subsystem: sub, Name: "budget_failures_total", Help: "Passes in which the budget of some tenant could not be looked at; what it reaches is recorded later then.",
	})
	for _, c := range []prometheus.Collector{m.failures, m.seconds, m.seq, m.behind, m.budgets} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// since notes how a pass ended.
func (m *rollups) since(now time.Time, err error) {
	if err == nil {
		m.done = now
	}
	m.behind.Set(now.Sub(m.done).Seconds())
}

// roll keeps the rollups up with the rows until ctx ends. Only the service whose projector is at work does, which spares the others
// the work; two that do so at once disturb nobody.
func (a *App) roll(ctx context.Context) error {
	every := a.rollEvery
	for ctx.Err() == nil {
		err := a.rollOnce(ctx)
		a.rollups.since(time.Now(), err)
		if err != nil && ctx.Err() == nil {
			a.rollups.failures.Inc()
			a.log.WarnContext(ctx, "cannot add hours up, trying again", "error", err)
		}
		t := time.NewTimer(every)
		select {
		case <-ctx.Done():
			t.Stop()
		case <-t.C:
		}
	}
	return nil
}

func (a *App) rollOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rollTime)
	defer cancel()
	p, ok, err := a.projector.Position(ctx)
	if err != nil || !ok || !p.Mine {
		return err
	}
	start := time.Now()
	if err := a.conn.Roll(ctx, clickhouse.Mark{Life: p.Life, Seq: p.Seq, At: p.At, Schema: p.Schema}); err != nil {
		return err
	}
	a.rollups.seconds.Observe(time.Since(start).Seconds())
	a.rollups.seq.Set(float64(p.Seq))
	// Budgets that cannot be looked at do not make hours late.
	if err := a.budgets.Pass(ctx, budget.Position{Life: p.Life, Seq: p.Seq, At: p.At}); err != nil && ctx.Err() == nil {
		a.rollups.budgets.Inc()
		a.log.WarnContext(ctx, "cannot look at all budgets, trying again", "error", err)
	}
	return nil
}
