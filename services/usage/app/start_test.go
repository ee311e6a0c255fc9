package app_test

import (
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/services/usage/app"
	"github.com/sandtrail/sandtrail/services/usage/internal/enginetest"
)

// broken is an address in front of another whose first connections are closed at once.
func broken(t *testing.T, to string, first int64) (addr string, tried *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	tried = &atomic.Int64{}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if tried.Add(1) <= first {
				_ = c.Close()
				continue
			}
			go func() {
				defer c.Close()
				up, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer up.Close()
				go func() { _, _ = io.Copy(up, c) }()
				_, _ = io.Copy(c, up)
			}()
		}
	}()
	return l.Addr().String(), tried
}

// ClickHouse may be away when the service starts, as at any other time.
func TestTheServiceStartsBeforeClickHouseAnswers(t *testing.T) {
	e := enginetest.Start(t, "")
	const refused = 7
	_, rest, _ := strings.Cut(e.URL(), "@")
	host, _, _ := strings.Cut(rest, "/")
	addr, tried := broken(t, host, refused)
	n := natstest.Start(t)
	a, err := app.New(t.Context(), app.Config{ClickHouse: strings.Replace(e.URL(), host, addr, 1)},
		app.Deps{NC: n.NC, JS: n.JS, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	require.Greater(t, tried.Load(), int64(refused))
	require.NoError(t, a.Health(t.Context()))
}
