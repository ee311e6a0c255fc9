package app_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/services/lifecycle/app"
	"github.com/sandtrail/sandtrail/toolbox/cgroup"
)

// A whole life on the real thing: lifecycle is started again while the sandbox runs, and the sandbox's keeper is killed once.
func TestARealSandboxOutlivesLifecycleAndIsFoundDeadWhenItDies(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: real sandboxes")
	}
	w := newWorld(t)
	cfg := w.config()
	cfg.Driver.Cgroup = fmt.Sprintf("sandtrail-app-test-%d", os.Getpid())
	t.Cleanup(func() {
		g, err := cgroup.Open(cfg.Driver.Cgroup)
		require.NoError(t, err)
		require.NoError(t, g.Remove())
	})
	log := slog.New(slog.NewTextHandler(&w.logged, nil))
	require.NoError(t, app.Prepare(t.Context(), cfg, log, nil))
	for _, c := range app.Checks(t.Context(), cfg, log) {
		require.True(t, c.OK, "%s: %s; %s", c.Name, c.Detail, c.Fix)
	}
	run := func() (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		a, err := app.New(ctx, cfg, app.Deps{NC: w.f.NC, Log: log, Now: w.now})
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		return func() {
			cancel()
			require.NoError(t, <-done)
		}
	}
	create := func() string {
		id := ids.New()
		c := createCommand(id, nil)
		c.GetCreate().Image = app.DefaultImage
		require.Nil(t, w.outcome(w.send(c)).GetError())
		return id
	}
	stop := run()
	lives, dies := create(), create()
	s := w.await(lives, sandbox.Ready)
	t.Logf("ready after %s", s.ReadyAt.Sub(s.CreatedAt).Round(time.Millisecond))
	w.await(dies, sandbox.Ready)
	stop()
	stop = run()
	pid, err := os.ReadFile(filepath.Join(w.dir, "sandboxes", dies, "keeper.pid"))
	require.NoError(t, err)
	kill(t, pid)
	require.NotEmpty(t, w.await(dies, sandbox.Failed).Reason)
	require.Equal(t, sandbox.Ready, w.load(lives).State)
	for _, id := range []string{lives, dies} {
		require.Nil(t, w.outcome(w.send(destroyCommand(id))).GetError())
		w.await(id, sandbox.Destroyed)
	}
	require.NotZero(t, w.load(lives).Usage.GetCpuMs(), "the usage of its life is in the last event")
	// The directory of what stopped ones keep is there from the start, and empty.
	for _, names := range []string{"[^.]*", ".kept/*"} {
		left, err := filepath.Glob(filepath.Join(w.dir, "sandboxes", names))
		require.NoError(t, err)
		require.Empty(t, left)
	}
	kept, err := filepath.Glob(filepath.Join(w.dir, "workspaces", "*.img"))
	require.NoError(t, err)
	require.Len(t, kept, 2, "workspaces stay until their time")
	require.Empty(t, w.places("worker."+natstest.Worker))
	h, err := w.log.Load(t.Context(), subject.Workspace(tenant, lives))
	require.NoError(t, err)
	require.Len(t, h.Events, 1)
	stop()
}

// kill ends the process whose id stands at the start of what a keeper wrote about itself.
func kill(t *testing.T, record []byte) {
	t.Helper()
	var pid int
	_, err := fmt.Sscan(string(record), &pid)
	require.NoError(t, err)
	require.Greater(t, pid, 1)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
}
