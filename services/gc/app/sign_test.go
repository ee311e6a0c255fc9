package app_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/audit"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/services/gc/app"
)

// Two processes run; one of them signs, and the log is whole under the key.
func TestTheLogIsSignedByOneOfSeveral(t *testing.T) {
	w := newWorld(t)
	w.live()
	key := filepath.Join(t.TempDir(), "keys", "audit.pem")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for range 2 {
		a, err := app.New(ctx, app.Config{AuditKeyFile: key, SignEvery: 20 * time.Millisecond},
			app.Deps{NC: w.f.NC, Log: slog.New(slog.DiscardHandler), Now: w.now, Registry: prometheus.NewRegistry()})
		require.NoError(t, err)
		go func() { ended <- a.Run(ctx) }()
	}
	public, err := audit.LoadPublic(key + ".pub")
	require.NoError(t, err)
	signed := func() uint64 {
		log, err := audit.OpenLog(t.Context(), w.f.JS)
		require.NoError(t, err)
		c, _, err := audit.Latest(t.Context(), log, audit.Keys{public})
		require.NoError(t, err)
		return c.Size
	}
	require.Eventually(t, func() bool { return signed() > 0 }, time.Minute, 10*time.Millisecond)
	first := signed()
	w.live()
	require.Eventually(t, func() bool { return signed() > first+1 }, time.Minute, 10*time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
	require.NoError(t, <-ended)
	log, err := audit.OpenLog(t.Context(), w.f.JS)
	require.NoError(t, err)
	s, err := log.Open(t.Context(), 1)
	require.NoError(t, err)
	v := audit.NewVerifier(audit.Options{Keys: audit.Keys{public}, LastSeq: log.LastSeq})
	defer v.Close()
	r, err := audit.Verify(t.Context(), s, v)
	require.NoError(t, err)
	require.True(t, r.OK(), "%v", r.Total)
	require.LessOrEqual(t, r.Checkpoints, uint64(4), "nothing is signed where nothing happens")
}

// A scheduled pass signs too, and one that only looks does not.
func TestOnePassSignsTheLog(t *testing.T) {
	w := newWorld(t)
	w.live()
	key := filepath.Join(t.TempDir(), "audit.pem")
	a, err := app.New(t.Context(), app.Config{AuditKeyFile: key}, app.Deps{NC: w.f.NC, Log: slog.New(slog.DiscardHandler), Now: w.now})
	require.NoError(t, err)
	signed := func() uint64 {
		log, err := audit.OpenLog(t.Context(), w.f.JS)
		require.NoError(t, err)
		c, _, err := audit.Latest(t.Context(), log, nil)
		require.NoError(t, err)
		return c.Size
	}
	_, err = a.Once(t.Context(), true)
	require.NoError(t, err)
	require.Zero(t, signed())
	_, err = a.Once(t.Context(), false)
	require.NoError(t, err)
	require.Positive(t, signed())
}

func TestWithoutAKeyNothingIsSigned(t *testing.T) {
	f := natstest.Start(t)
	_, err := app.New(t.Context(), app.Config{SignEvery: -1}, app.Deps{NC: f.NC, Log: slog.New(slog.DiscardHandler)})
	require.ErrorContains(t, err, "signatures")
	_, err = app.New(t.Context(), app.Config{AuditKeyFile: t.TempDir()}, app.Deps{NC: f.NC, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	require.ErrorContains(t, err, "audit key")
}
