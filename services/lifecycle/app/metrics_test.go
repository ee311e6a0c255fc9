package app_test

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/services/lifecycle/app"
)

// value of a metric whose one label is so; of a histogram its count. Absent is -1.
func value(t *testing.T, reg prometheus.Gatherer, name, label string) float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if len(m.GetLabel()) > 0 && m.GetLabel()[0].GetValue() != label {
				continue
			}
			switch f.GetType() {
			case dto.MetricType_HISTOGRAM:
				return float64(m.GetHistogram().GetSampleCount())
			case dto.MetricType_COUNTER:
				return m.GetCounter().GetValue()
			default:
				return m.GetGauge().GetValue()
			}
		}
	}
	return -1
}

type figure struct{ name, label string }

// becomes waits until the metrics are so.
func becomes(t *testing.T, reg prometheus.Gatherer, want map[figure]float64) {
	t.Helper()
	got := map[figure]float64{}
	require.Eventually(t, func() bool {
		for f, v := range want {
			if got[f] = value(t, reg, f.name, f.label); got[f] != v {
				return false
			}
		}
		return true
	}, patience, tick, "want %v, have %v", want, &got)
}

func TestMetricsComeFromTheLogAndTheHost(t *testing.T) {
	w := newWorld(t)
	p, reg := w.measured("", func(c *app.Config) { c.MaxSandboxes = 7 })
	becomes(t, reg, map[figure]float64{
		{"sandtrail_sandboxes", "ready"}: 0, {"sandtrail_sandboxes", "failed"}: 0, {"sandtrail_sandbox_ready_seconds", ""}: 0,
		{"sandtrail_sandbox_failed_total", "image_not_found"}: 0, {"sandtrail_sandbox_places", ""}: 7,
		{"sandtrail_keepers", "alive"}: 0, {"sandtrail_keepers", "silent"}: 0, {"sandtrail_workers", ""}: 1,
		{"sandtrail_log_reachable", ""}: 1, {"sandtrail_reconcile_failures_total", ""}: 0,
	})
	require.Positive(t, value(t, reg, "sandtrail_state_free_bytes", ""))
	require.GreaterOrEqual(t, value(t, reg, "sandtrail_reconcile_age_seconds", ""), 0.0)

	made := []string{w.create(), w.create(), w.create()}
	w.host.with(func(h *host) {
		h.create = func(context.Context, string) error {
			return fault.New(fault.NotFound, fault.ReasonImageNotFound, "there is no such image")
		}
	})
	none := ids.New()
	require.Nil(t, w.outcome(w.send(createCommand(none, nil))).GetError())
	w.await(none, sandbox.Failed)
	w.send(destroyCommand(made[0]))
	w.await(made[0], sandbox.Destroyed)
	w.host.with(func(h *host) { h.silent[made[1]] = true })
	want := map[figure]float64{
		{"sandtrail_sandboxes", "ready"}: 2, {"sandtrail_sandboxes", "failed"}: 1, {"sandtrail_sandboxes", "destroying"}: 0,
		{"sandtrail_sandbox_ready_seconds", ""}: 3, {"sandtrail_sandbox_failed_total", "image_not_found"}: 1,
		{"sandtrail_keepers", "alive"}: 1, {"sandtrail_keepers", "silent"}: 1,
	}
	becomes(t, reg, want)
	p.kill()

	_, reg = w.measured("")
	becomes(t, reg, want)
	w.host.with(func(h *host) { h.silent[made[1]], h.create = false, nil })
	w.create()
	becomes(t, reg, map[figure]float64{
		{"sandtrail_sandboxes", "ready"}: 3, {"sandtrail_sandbox_ready_seconds", ""}: 4,
		{"sandtrail_keepers", "alive"}: 3, {"sandtrail_keepers", "silent"}: 0,
	})
}

func TestAStartThatAKilledProcessMadeIsCountedOnce(t *testing.T) {
	w := newWorld(t)
	for n, step := range []string{"created", "before SandboxReady", "after SandboxReady"} {
		p, _ := w.measured(step)
		id := ids.New()
		w.send(createCommand(id, nil))
		require.Eventually(t, p.hit.Load, patience, tick, "never came to: %s", step)
		p, reg := w.measured("")
		w.await(id, sandbox.Ready)
		becomes(t, reg, map[figure]float64{{"sandtrail_sandboxes", "ready"}: float64(n + 1), {"sandtrail_sandbox_ready_seconds", ""}: float64(n + 1)})
		p.kill()
	}
}

func TestOneWorkersMetricsLeaveOutTheOthers(t *testing.T) {
	w := newWorld(t)
	_, reg := w.measured("")
	w.create()
	_, other := w.measured("", func(c *app.Config) { c.Worker, c.Roles = "other", []string{app.RoleWorker} })
	becomes(t, reg, map[figure]float64{{"sandtrail_sandboxes", "ready"}: 1, {"sandtrail_sandbox_ready_seconds", ""}: 1, {"sandtrail_workers", ""}: 2})
	becomes(t, other, map[figure]float64{{"sandtrail_sandboxes", "ready"}: 0, {"sandtrail_sandbox_ready_seconds", ""}: 0, {"sandtrail_workers", ""}: -1})
	_, scheduler := w.measured("", func(c *app.Config) { c.Roles = []string{app.RoleScheduler} })
	becomes(t, scheduler, map[figure]float64{{"sandtrail_sandboxes", "ready"}: -1, {"sandtrail_workers", ""}: 2, {"sandtrail_log_reachable", ""}: 1})
}
