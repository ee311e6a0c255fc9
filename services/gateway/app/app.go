// Package app is the gateway: the edge through which callers reach Sandtrail.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/ops"
	"github.com/sandtrail/sandtrail/libs/seal"
	"github.com/sandtrail/sandtrail/services/gateway/internal/calls"
	"github.com/sandtrail/sandtrail/services/gateway/internal/certs"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
	"github.com/sandtrail/sandtrail/services/gateway/internal/grpcapi"
	"github.com/sandtrail/sandtrail/services/gateway/internal/httpapi"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
	"github.com/sandtrail/sandtrail/services/gateway/internal/sandboxapi"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

// Deps are what the gateway needs from whoever composes it.
type Deps struct {
	NC *nats.Conn
	// JS is that of NC; nil makes it.
	JS       jetstream.JetStream
	Log      *slog.Logger
	Registry *prometheus.Registry
	// Tracer makes spans of calls; nil makes none.
	Tracer trace.TracerProvider
	// Checks are further conditions of readiness by name, from services in the same process.
	Checks map[string]func() error
	// Version of the program, as it tells callers.
	Version string
}

// App is a gateway that listens and has not begun to serve.
type App struct {
	log    *slog.Logger
	nc     *nats.Conn
	door   *principal.Door
	calls  *calls.Recorder
	server *grpc.Server
	health *health.Server
	grpcL  net.Listener
	httpL  net.Listener
	opsL   net.Listener
	tools  *tools
	// servers are those of HTTP.
	servers []serving
	// certs is the certificate of gRPC and HTTP, if any.
	certs *certs.Pair
	drain time.Duration
}

// New checks the configuration and opens both listeners, so that a port in use is an error here. ctx bounds what the gateway
// does in the background.
func New(ctx context.Context, cfg Config, d Deps) (*App, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("gateway configuration: %w", err)
	}
	var keys *principal.Keys
	var err error
	if cfg.KeysFile != "" {
		if keys, err = principal.LoadKeys(cfg.KeysFile); err != nil {
			return nil, err
		}
	}
	key, err := seal.Load(cfg.SealKeyFile)
	if err != nil {
		return nil, err
	}
	if d.JS == nil {
		if d.JS, err = jetstream.New(d.NC); err != nil {
			return nil, fmt.Errorf("open JetStream: %w", err)
		}
	}
	use := usecase.New(ctx, d.NC, d.JS, jslog.New(d.JS), key, cfg.limits(), d.Log)
	if d.Tracer == nil {
		d.Tracer = noop.NewTracerProvider()
	}
	a := &App{
		log: d.Log, nc: d.NC, drain: cfg.Drain,
		door: &principal.Door{
			File: keys, Ring: principal.NewRing(d.JS, d.Log), JWT: principal.NewJWTs(cfg.JWT, d.Log), Strict: cfg.RequireKeys,
		},
	}
	options := []grpc.ServerOption{grpcapi.Traced(d.Tracer)}
	if a.certs, err = certs.New(cfg.TLSCert, cfg.TLSKey, cfg.TLSEvery, d.Log, d.Registry); err != nil {
		return nil, err
	}
	if a.certs.Shows() {
		options = append(options, grpc.Creds(credentials.NewTLS(a.certs.Config())))
	}
	around, err := edge.New(a.door, d.Log, d.NC.IsConnected, cfg.HTTPMemory)
	if err != nil {
		return nil, err
	}
	if a.calls, err = calls.New(d.NC, d.Log, d.Registry); err != nil {
		return nil, fmt.Errorf("record calls: %w", err)
	}
	around.Calls = a.calls
	probes := keepalive.ServerParameters{Time: cfg.Probe, Timeout: cfg.ProbeTimeout}
	if a.server, a.health, err = grpcapi.New(use, around, probes, d.Registry, options...); err != nil {
		return nil, err
	}
	checks := []ops.Check{{Name: "nats", Fn: a.connected}}
	for name, fn := range d.Checks {
		checks = append(checks, ops.Check{Name: name, Fn: fn})
	}
	if a.tools, err = newTools(ctx, cfg, d, around); err != nil {
		return nil, fmt.Errorf("make the tools of MCP: %w", err)
	}
	api, err := httpapi.New(use, around, httpapi.Options{
		Image: cfg.Image, Origins: cfg.CORSOrigins, Heartbeat: cfg.Heartbeat, BodyTime: cfg.BodyTime, PendingWait: cfg.PendingWait, Tracer: d.Tracer,
		MCP: a.tools.handler,
	}, d.Registry)
	if err != nil {
		return nil, fmt.Errorf("make the HTTP API: %w", err)
	}
	named, err := sandboxapi.New(use, around, sandboxapi.Options{
		Image: cfg.Image, Tenant: cfg.DevelopmentTenant, Version: d.Version, BodyTime: cfg.BodyTime, Tracer: d.Tracer,
		Heartbeat: cfg.Heartbeat, MCP: a.tools.handler, Signer: key,
	}, d.Registry)
	if err != nil {
		return nil, fmt.Errorf("make the HTTP API of named sandboxes: %w", err)
	}
	if err := a.listen(cfg, both(api, named), ops.Handler(d.Registry, checks...)); err != nil {
		return nil, errors.Join(err, a.tools.conn.Close())
	}
	return a, nil
}

// listen opens every listener, or none.
func (a *App) listen(cfg Config, api, operators http.Handler) (err error) {
	defer func() {
		if err != nil {
			a.closeListeners()
		}
	}()
	if a.grpcL, err = net.Listen("tcp", cfg.GRPC); err != nil {
		return fmt.Errorf("listen for gRPC: %w", err)
	}
	if a.httpL, err = net.Listen("tcp", cfg.HTTP); err != nil {
		return fmt.Errorf("listen for HTTP: %w", err)
	}
	a.opsL = a.httpL
	if cfg.Ops != "" {
		if a.opsL, err = net.Listen("tcp", cfg.Ops); err != nil {
			return fmt.Errorf("listen for operators: %w", err)
		}
		a.servers = append(a.servers, serving{"operators", a.opsL, opsServer(operators)})
	}
	a.servers = append(a.servers, serving{"HTTP", limited(a.httpL), a.apiServer(cfg, api, operators)})
	return nil
}

func (a *App) closeListeners() {
	for _, l := range []net.Listener{a.grpcL, a.httpL, a.opsL} {
		if l != nil {
			_ = l.Close() // another error is told already
		}
	}
}

// GRPC is the address that gRPC listens on.
func (a *App) GRPC() string { return a.grpcL.Addr().String() }

// HTTP is the address that the HTTP API listens on.
func (a *App) HTTP() string { return a.httpL.Addr().String() }

// Ops is the address that health and metrics listen on.
func (a *App) Ops() string { return a.opsL.Addr().String() }

// Development reports whether callers need no credential.
func (a *App) Development() bool { return a.door.Development() }

func (a *App) connected() error {
	if a.nc.IsConnected() {
		return nil
	}
	return fmt.Errorf("not connected (%s)", a.nc.Status())
}

// Run serves until ctx ends, then lets open calls finish for a moment.
func (a *App) Run(ctx context.Context) error {
	if a.Development() {
		a.log.WarnContext(ctx, "no API keys are configured: anybody on this host may do anything (development mode)")
	}
	done, stop := a.record(ctx)
	defer func() { stop(); <-done }()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := a.server.Serve(limited(a.grpcL)); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serve gRPC: %w", err)
		}
		return nil
	})
	for _, s := range a.servers {
		g.Go(s.run)
	}
	g.Go(func() error { return a.tools.run(ctx, a.server) })
	g.Go(func() error { a.door.Run(ctx); return nil })
	g.Go(func() error { a.certs.Run(ctx); return nil })
	g.Go(func() error { a.watch(ctx); return nil })
	g.Go(func() error {
		<-ctx.Done()
		a.stop()
		return nil
	})
	return g.Wait()
}

// record writes records of calls until it is stopped, which is behind the last call.
func (a *App) record(ctx context.Context) (done <-chan struct{}, stop func()) {
	ctx, stop = context.WithCancel(context.WithoutCancel(ctx))
	end := make(chan struct{})
	go func() {
		defer close(end)
		a.calls.Run(ctx, recordRest)
	}()
	return end, stop
}

// recordRest is how long a gateway that stops writes records of calls that have ended.
const recordRest = 3 * time.Second

// watch makes the health service say what readiness says.
func (a *App) watch(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		state := healthv1.HealthCheckResponse_SERVING
		if a.connected() != nil {
			state = healthv1.HealthCheckResponse_NOT_SERVING
		}
		a.health.SetServingStatus("", state)
		a.health.SetServingStatus("compute.v1.ComputeService", state)
		select {
		case <-tick.C:
		case <-ctx.Done():
			a.health.Shutdown()
			return
		}
	}
}

// stop lets open calls go on for as long as the drain takes, then cuts them.
func (a *App) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), a.drain)
	defer cancel()
	var all sync.WaitGroup
	for _, s := range a.servers {
		all.Go(func() { s.stop(ctx) })
	}
	all.Go(func() {
		done := make(chan struct{})
		go func() { a.server.GracefulStop(); close(done) }()
		select {
		case <-done:
		case <-ctx.Done():
			a.server.Stop()
		}
	})
	all.Wait()
}
