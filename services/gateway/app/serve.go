package app

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/netutil"

	"github.com/sandtrail/sandtrail/services/gateway/internal/sandboxapi"
)

const (
	// writeStall is how long a client may take to read what was written to it at once.
	writeStall = 30 * time.Second
	// maxHead bounds the head of a request, in bytes.
	maxHead = 16 << 10
	// maxConnections of HTTP, and of gRPC, at one time. Further ones wait to be accepted.
	maxConnections = 16_384
)

// serving is a server of HTTP on its listener.
type serving struct {
	name     string
	listener net.Listener
	server   *http.Server
}

func (s serving) run() error {
	serve := s.server.Serve
	if s.server.TLSConfig != nil {
		serve = func(l net.Listener) error { return s.server.ServeTLS(l, "", "") } // the configuration has the certificate
	}
	if err := serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", s.name, err)
	}
	return nil
}

func (s serving) stop(ctx context.Context) {
	if s.server.Shutdown(ctx) != nil {
		_ = s.server.Close() // nothing is left to be told
	}
}

func limited(l net.Listener) net.Listener { return netutil.LimitListener(l, maxConnections) }

func opsServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: maxHead,
	}
}

// apiServer serves the API, and health and metrics beside it unless they have a listener of their own. Handlers bound the time of bodies
// and answers themselves: a stream has no end that is known beforehand.
func (a *App) apiServer(cfg Config, api, operators http.Handler) *http.Server {
	h := api
	if cfg.Ops == "" {
		h = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/healthz", "/readyz", "/metrics":
				_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeStall)) // the write fails by itself otherwise
				operators.ServeHTTP(w, r)
			default:
				api.ServeHTTP(w, r)
			}
		})
	}
	h = timed(h, cfg.BodyTime)
	p := &http.Protocols{}
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(!a.certs.Shows())
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: cfg.HeadTime, IdleTimeout: cfg.IdleTime, MaxHeaderBytes: maxHead, Protocols: p, ErrorLog: quiet(a.log),
		HTTP2: &http.HTTP2Config{SendPingTimeout: cfg.Probe, PingTimeout: cfg.ProbeTimeout, WriteByteTimeout: writeStall},
	}
	if a.certs.Shows() {
		s.TLSConfig = a.certs.Config()
	}
	return s
}

// timed bounds the time of a body that no handler reads: the server reads on behind an answer, and would wait for its sender for ever.
func timed(h http.Handler, most time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != http.NoBody {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(most)) // one that cannot be set is that of a connection that is gone
		}
		h.ServeHTTP(w, r)
	})
}

// both serves the controller API and that of named sandboxes on one address.
func both(controller, named http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if sandboxapi.Takes(r) {
			named.ServeHTTP(w, r)
			return
		}
		controller.ServeHTTP(w, r)
	})
}

// DefaultImage is that of a sandbox whose request over HTTP names none.
const DefaultImage = "ghcr.io/paper-board/sandbox-python:v0.1.0"

// badOrigin reports the first origin that is none.
func badOrigin(all []string) string {
	for _, o := range all {
		if o != "*" && !strings.HasPrefix(o, "https://") && !strings.HasPrefix(o, "http://") || strings.HasSuffix(o, "/") {
			return o
		}
	}
	return ""
}

// quiet makes what net/http says of connections that clients broke a matter of debugging.
func quiet(l *slog.Logger) *log.Logger { return slog.NewLogLogger(l.Handler(), slog.LevelDebug) }
