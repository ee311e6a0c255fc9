// Package enginetest gives a test a real ClickHouse. The test's package calls Main from TestMain.
package enginetest

import (
	"log/slog"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
	"github.com/sandtrail/sandtrail/services/usage/internal/engine"
)

// Main runs the tests, or the engine where this process was started to be one.
func Main(m *testing.M) {
	if engine.IsChild() {
		os.Exit(engine.Main())
	}
	os.Exit(m.Run())
}

// Start starts an engine on any ports that ends with the test. dir may be empty.
func Start(t testing.TB, dir string, ports ...int) *engine.Engine {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: a real ClickHouse")
	}
	lib := library(t)
	if dir == "" {
		dir = t.TempDir()
	}
	o := engine.Options{Library: lib, Dir: dir}
	if len(ports) == 2 {
		o.Native, o.HTTP = ports[0], ports[1]
	}
	return launch(t, o)
}

// StartWith starts an engine with further users.
func StartWith(t testing.TB, users map[string]engine.User) *engine.Engine {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: a real ClickHouse")
	}
	return launch(t, engine.Options{Library: library(t), Dir: t.TempDir(), Users: users})
}

// launch starts an engine. What it says when it dies stands in the test's output.
func launch(t testing.TB, o engine.Options) *engine.Engine {
	t.Helper()
	o.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))
	e, err := engine.Start(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(e.Close)
	return e
}

func library(t testing.TB) string {
	t.Helper()
	cache, err := engine.CacheDir()
	require.NoError(t, err)
	lib, err := engine.Prepare(t.Context(), cache, func(s string) { t.Log(s) })
	require.NoError(t, err)
	return lib
}

// Open connects to a server and brings its schema up to date.
func Open(t testing.TB, url string) *clickhouse.Conn {
	t.Helper()
	c, err := clickhouse.Open(url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	require.NoError(t, c.Up(t.Context()))
	return c
}
