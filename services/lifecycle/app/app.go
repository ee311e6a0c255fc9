// Package app is lifecycle: it decides about sandboxes (scheduler role), and makes, watches and ends them on its host (worker
// role).
package app

import (
	"context"
	"fmt"
	"log/slog"
	goruntime "runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/logclock"
	"github.com/sandtrail/sandtrail/libs/openexecs"
	"github.com/sandtrail/sandtrail/libs/ops"
	"github.com/sandtrail/sandtrail/libs/projection"
	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/libs/sandbox/views"
	"github.com/sandtrail/sandtrail/libs/seal"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/worker"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/materialise"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/metrics"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/pool"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/reconcile"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/scheduler"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/view"
)

// service is the name in metrics, dead letters and actors.
const service = "lifecycle"

// Events is a log that can also tell whose sandbox an id is.
type Events interface {
	eventlog.Log
	reconcile.Finder
}

// Deps are what lifecycle needs from whoever composes it.
type Deps struct {
	NC       *nats.Conn
	Log      *slog.Logger
	Registry *prometheus.Registry
	Topology topology.Options
	// Tracer makes spans of commands; nil makes none.
	Tracer trace.TracerProvider
	// Driver runs the sandboxes; nil is the one that Config says.
	Driver runtime.Driver
	// Events is the log; nil is the one on NC.
	Events Events
	// Now is the clock of every decision; nil is that of the log's server.
	Now func() time.Time
}

// App is a lifecycle service.
type App struct {
	// clock is that of the log's server; nil where Deps has one.
	clock *logclock.Clock

	cfg  Config
	log  *slog.Logger
	js   jetstream.JetStream
	reg  prometheus.Registerer
	span trace.Tracer
	live *views.Set
	view *projection.Runner
	// starts counts how sandboxes of this worker start; nil without the worker role.
	starts *projection.Runner

	workers   *scheduler.Workers
	scheduler *scheduler.Scheduler

	role      *materialise.Role
	reconcile *reconcile.Reconciler
	heartbeat materialise.Heartbeat
	// pool is nil where the driver keeps no sandboxes ready; leads while this process acts for the worker.
	pool  *pool.Pool
	leads atomic.Bool
	// closeDriver ends what a driver that was opened here does in the background; nil without one.
	closeDriver func()
}

// New checks the configuration and builds the roles. The streams must exist; the worker's consumers are made here.
func New(ctx context.Context, cfg Config, d Deps) (*App, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("lifecycle configuration: %w", err)
	}
	cfg = cfg.withDefaults()
	js, err := jetstream.New(d.NC)
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	if d.Events == nil {
		d.Events = jslog.New(js)
	}
	var clock *logclock.Clock
	if d.Now == nil {
		if clock, err = logclock.New(ctx, js); err != nil {
			return nil, err
		}
		d.Now = clock.Now
	}
	if d.Registry == nil {
		d.Registry = prometheus.NewRegistry()
	}
	if d.Tracer == nil {
		d.Tracer = noop.NewTracerProvider()
	}
	a := &App{
		clock: clock, cfg: cfg, log: d.Log.With("service", service), js: js, reg: d.Registry, live: views.New(d.Log, views.Live),
		span: d.Tracer.Tracer("github.com/sandtrail/sandtrail/services/lifecycle"),
	}
	projected, err := view.New(ctx, js, d.Events, a.log)
	if err != nil {
		return nil, err
	}
	a.view = projection.New(js, projected, projection.Options{Service: service, Log: a.log, Registerer: a.reg})
	if _, err := telemetry.Register(a.reg, ops.Log(js)); err != nil {
		return nil, err
	}
	places, err := scheduler.NewPlaces(ctx, js, d.Now)
	if err != nil {
		return nil, err
	}
	if cfg.has(RoleScheduler) {
		a.workers = scheduler.NewWorkers(a.log, d.Now)
		if err := register(a.reg, metrics.Scheduler(a.freshWorkers)); err != nil {
			return nil, err
		}
		a.scheduler, err = scheduler.New(ctx, scheduler.Config{
			Quotas: cfg.quotas(), StartDeadline: cfg.StartDeadline, WorkerWait: cfg.WorkerWait, Limits: cfg.limits(),
		}, d.NC, js, d.Events, places, a.workers, a.log, d.Now)
		if err != nil {
			return nil, err
		}
	}
	if cfg.has(RoleWorker) {
		if err := a.newWorker(ctx, d, places); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (a *App) newWorker(ctx context.Context, d Deps, places *scheduler.Places) error {
	cfg := a.cfg
	if err := topology.EnsureWorker(ctx, a.js, cfg.Worker, d.Topology); err != nil {
		return fmt.Errorf("make the consumers of worker %s: %w", cfg.Worker, err)
	}
	key, err := seal.Load(cfg.SealKeyFile)
	if err != nil {
		return fmt.Errorf("load the seal key: %w", err)
	}
	driver := d.Driver
	if driver == nil {
		if driver, a.closeDriver, err = openDriver(ctx, cfg, a.log, d.Now); err != nil {
			return err
		}
	}
	cpu, memory, err := capacity(cfg)
	if err != nil {
		return err
	}
	busy := materialise.NewBusy()
	a.role = materialise.New(materialise.Config{
		Name: cfg.Worker, StartDeadline: cfg.StartDeadline, KeepWorkspace: cfg.KeepWorkspace, EndTimeout: cfg.EndTimeout,
	}, d.NC, d.Events, driver, key, places, busy, a.log, d.Now)
	a.reconcile = reconcile.New(reconcile.Config{
		Worker: cfg.Worker, Every: cfg.ReconcileEvery, SampleEvery: cfg.SampleEvery, StartDeadline: cfg.StartDeadline,
		OrphanGrace: cfg.OrphanGrace, WorkspaceGrace: cfg.KeepWorkspace,
	}, d.Events, d.Events, a.execs, driver, a.role, busy, a.live, a.log, d.Now)
	if n, ok := driver.(runtime.Notifier); ok {
		n.OnChange(a.reconcile.Notify)
	}
	if p, ok := driver.(pooled); ok {
		a.pool = p.Pool()
		if err := register(a.reg, a.pool); err != nil {
			return err
		}
	}
	starts, err := metrics.NewStarts(ctx, a.js, d.Events, cfg.Worker)
	if err != nil {
		return err
	}
	a.starts = projection.New(a.js, starts, projection.Options{Service: service, Log: a.log, Registerer: a.reg})
	if err := register(a.reg, starts, &metrics.Worker{
		Name: cfg.Worker, Places: cfg.MaxSandboxes, StateDir: cfg.StateDir, Views: a.live, Looks: a.reconcile, Now: d.Now,
	}); err != nil {
		return err
	}
	_, stops := driver.(runtime.Stopper)
	_, snapshots := driver.(runtime.Snapshotter)
	a.heartbeat = materialise.Heartbeat{
		Status: &commandsv1.WorkerStatus{
			Worker: cfg.Worker, Driver: cfg.DriverName, Region: cfg.Region, Provider: cfg.Provider, Labels: cfg.Labels, Tenants: cfg.Tenants, CpuMillis: cpu, MemoryBytes: memory,
			MaxSandboxes: uint32(cfg.MaxSandboxes), //nolint:gosec // checked to be small and positive
			Stops:        stops,
			Snapshots:    snapshots,
		},
		Sandboxes: a.reconcile.Sandboxes, Cordoned: func() string { return cordoned(cfg.StateDir) }, Every: cfg.HeartbeatEvery, Log: a.log, Now: d.Now,
	}
	return nil
}

// execs tells of the execs of a sandbox.
func (a *App) execs(ctx context.Context, tenant, id string) (open bool, last time.Time, err error) {
	running, err := openexecs.Of(ctx, a.js, tenant, id)
	if err != nil || len(running) > 0 {
		return len(running) > 0, time.Time{}, err
	}
	last, err = openexecs.Last(ctx, a.js, tenant, id)
	return false, last, err
}

func (a *App) freshWorkers() int {
	fresh, _ := a.workers.Fresh()
	return len(fresh)
}

func register(reg prometheus.Registerer, all ...prometheus.Collector) error {
	for _, c := range all {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// capacity is what one sandbox may have at most: what this host has, or what is allowed where a cluster finds the place.
func capacity(cfg Config) (cpuMillis, memoryBytes uint64, err error) {
	if cfg.DriverName == DriverKube {
		return uint64(cfg.MaxCPUMillis), cfg.MaxMemoryBytes, nil
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, 0, fmt.Errorf("read the size of memory: %w", err)
	}
	cpuMillis, memoryBytes = uint64(goruntime.NumCPU())*1000, info.Totalram*uint64(info.Unit) //nolint:gosec // not negative
	if cfg.WorkerCPUMillis > 0 {
		cpuMillis = min(cpuMillis, cfg.WorkerCPUMillis)
	}
	if cfg.WorkerMemoryBytes > 0 {
		memoryBytes = min(memoryBytes, cfg.WorkerMemoryBytes)
	}
	return cpuMillis, memoryBytes, nil
}

// Run works until ctx ends or a role cannot go on, once. Commands under way are left to be repeated; sandboxes go on.
func (a *App) Run(ctx context.Context) error {
	if a.closeDriver != nil {
		defer a.closeDriver()
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.live.Run(ctx, a.js) })
	g.Go(func() error { return a.view.Run(ctx) })
	if a.clock != nil {
		g.Go(func() error { a.clock.Run(ctx); return nil })
	}
	if a.scheduler != nil {
		g.Go(func() error { return a.workers.Run(ctx, a.js) })
		g.Go(func() error {
			return a.consume(ctx, topology.ConsumerScheduler, a.cfg.Lanes, "sandbox.decide", a.scheduler.Handle)
		})
		g.Go(func() error { return a.sweep(ctx) })
	}
	if a.role != nil {
		// A lane for every sandbox that there may be: one that waits for a slow registry holds up nobody else's, nor its own end.
		lanes := max(a.cfg.Lanes, min(maxLanes, a.cfg.MaxSandboxes+16))
		g.Go(func() error {
			return a.consume(ctx, topology.ConsumerWorker(a.cfg.Worker), lanes, "sandbox.work", a.role.Handle)
		})
		g.Go(func() error { return a.lead(ctx) })
		g.Go(func() error { return a.starts.Run(ctx) })
		if a.pool != nil {
			g.Go(func() error { return a.pool.Run(ctx, a.leads.Load) })
		}
	}
	return g.Wait()
}

// RebuildViews removes every view of a sandbox and builds them again from the log. Run must be running. Until it returns views
// are missing; what decides does not need them.
func (a *App) RebuildViews(ctx context.Context) error {
	if err := view.Clear(ctx, a.js); err != nil {
		return err
	}
	return a.view.Rebuild(ctx)
}

func (a *App) consume(ctx context.Context, consumer string, lanes int, span string, h worker.Handler) error {
	err := worker.Run(ctx, a.js, worker.Config{
		Service: service, Stream: topology.StreamCommands, Consumer: consumer, Lanes: lanes,
		Log: a.log, Registerer: a.reg, Backoff: slices.Clone(backoff), MaxAttempts: maxAttempts,
	}, a.traced(span, h))
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("consume %s: %w", consumer, err)
	}
	return nil
}

// traced makes a span of each command, behind the one that sent it.
func (a *App) traced(name string, h worker.Handler) worker.Handler {
	return func(ctx context.Context, m worker.Message) error {
		ctx, span := a.span.Start(ctx, name, trace.WithSpanKind(trace.SpanKindConsumer))
		defer span.End()
		span.SetAttributes(attribute.String("messaging.destination.name", m.Subject), attribute.Int("sandtrail.attempt", m.Attempt))
		err := h(ctx, m)
		if err != nil {
			span.SetStatus(codes.Error, string(fault.From(err).Reason))
		}
		return err
	}
}

// A command that fails this often over about ten minutes goes to the dead letters. What it left half done is then up to the
// reconciler, which never gives up.
var backoff = []time.Duration{
	50 * time.Millisecond, 200 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
}

const maxAttempts = 25

// maxLanes is what the consumers hand out at once.
const maxLanes = 256

func (a *App) sweep(ctx context.Context) error {
	select {
	case <-a.live.Ready():
	case <-ctx.Done():
		return nil
	}
	tick := time.NewTicker(a.cfg.SweepEvery)
	defer tick.Stop()
	for {
		if err := a.scheduler.Sweep(ctx, a.live); err != nil && ctx.Err() == nil {
			a.log.Warn("the sweep was incomplete", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
