package app_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/app"
	"github.com/sandtrail/sandtrail/toolbox/cgroup"
)

// gauge is the value of a metric without labels, or of the one whose only label has the value.
func gauge(t *testing.T, reg *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return -1
}

// A create takes a warm sandbox and the log says so; the reconciler leaves warm ones alone; a process without a pool removes them.
func TestARealSandboxComesFromThePoolAndThePoolGoesWithItsPolicy(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: real sandboxes")
	}
	w := newWorld(t)
	cfg := w.config()
	cfg.Driver.Cgroup = fmt.Sprintf("sandtrail-warm-test-%d", os.Getpid())
	t.Cleanup(func() {
		g, err := cgroup.Open(cfg.Driver.Cgroup)
		require.NoError(t, err)
		require.NoError(t, g.Remove())
	})
	log := slog.New(slog.NewTextHandler(&w.logged, nil))
	require.NoError(t, app.Prepare(t.Context(), cfg, log, nil))
	reg := prometheus.NewRegistry()
	run := func(cfg app.Config) (stop func()) {
		reg = prometheus.NewRegistry()
		ctx, cancel := context.WithCancel(t.Context())
		a, err := app.New(ctx, cfg, app.Deps{NC: w.f.NC, Log: log, Now: w.now, Registry: reg})
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		return func() {
			cancel()
			require.NoError(t, <-done)
		}
	}
	pooled := cfg
	pooled.Warm = app.WarmConfig{Max: 1, Min: 1, Images: []string{app.DefaultImage}}
	stop := run(pooled)
	ready := func() bool { return gauge(t, reg, "sandtrail_warm_sandboxes", "ready") == 1 }
	require.Eventually(t, ready, time.Minute, tick)
	id := ids.New()
	c := createCommand(id, nil)
	c.GetCreate().Image = app.DefaultImage
	require.Nil(t, w.outcome(w.send(c)).GetError())
	s := w.await(id, sandbox.Ready)
	t.Logf("ready after %s", s.ReadyAt.Sub(s.CreatedAt).Round(time.Millisecond))
	h, err := w.log.Load(t.Context(), subject.Sandbox(tenant, id))
	require.NoError(t, err)
	var event *eventsv1.SandboxReady
	for _, e := range h.Events {
		if r, ok := e.Body.(*eventsv1.SandboxReady); ok {
			event = r
		}
	}
	require.True(t, event.GetWarm())
	require.NotEmpty(t, event.GetRuntimeId())
	require.InDelta(t, 1, gauge(t, reg, "sandtrail_warm_hits_total", ""), 0)
	require.Eventually(t, func() bool { return gauge(t, reg, "sandtrail_sandbox_warm_total", "") == 1 }, patience, tick)
	require.Eventually(t, ready, time.Minute, tick, "refilled")
	stop()

	warm := func() int {
		all, err := os.ReadDir(filepath.Join(w.dir, "sandboxes", ".warm"))
		require.NoError(t, err)
		return len(all)
	}
	require.Equal(t, 1, warm(), "it outlives the process, longer than an orphan would")
	stop = run(cfg)
	require.Eventually(t, func() bool { return warm() == 0 }, time.Minute, tick)
	require.Equal(t, sandbox.Ready, w.load(id).State, "what is somebody's stays")
	require.Nil(t, w.outcome(w.send(destroyCommand(id))).GetError())
	w.await(id, sandbox.Destroyed)
	stop()
}
