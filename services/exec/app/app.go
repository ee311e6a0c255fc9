// Package app is the exec service of one worker: it runs commands in the sandboxes of that worker, keeps their output, answers
// file calls and keeps receipts. Programs outlive it.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/projection"
	"github.com/sandtrail/sandtrail/libs/quota"
	"github.com/sandtrail/sandtrail/libs/seal"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/worker"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	"github.com/sandtrail/sandtrail/services/exec/internal/files"
	"github.com/sandtrail/sandtrail/services/exec/internal/locate"
	"github.com/sandtrail/sandtrail/services/exec/internal/receipt"
	"github.com/sandtrail/sandtrail/services/exec/internal/relay"
	"github.com/sandtrail/sandtrail/services/exec/internal/runner"
	"github.com/sandtrail/sandtrail/services/exec/internal/settle"
	"github.com/sandtrail/sandtrail/services/exec/internal/tunnel"
	"github.com/sandtrail/sandtrail/services/exec/internal/wayout"
	"github.com/sandtrail/sandtrail/toolbox/client"
)

// Config of the service. Zero values are replaced by the defaults named.
type Config struct {
	// NATSURL is dialled where Deps brings no connection.
	NATSURL string
	// StateDir holds sandboxes/<id>/keeper.sock of each sandbox of this worker that has a keeper.
	StateDir string
	// AgentCert and AgentKey are files (PEM) with the certificate by which this service calls the agents of sandboxes that have one, and
	// its key. They are read for each connection.
	AgentCert, AgentKey string
	// Worker is this host's name (local).
	Worker string
	// SealKeyFile holds the key under which the gateway seals environments and standard inputs.
	SealKeyFile string
	// MaxExecs at once on the worker (256) and in one sandbox (32). More are refused with too_many_execs.
	MaxExecs, MaxExecsPerSandbox int
	// Quotas of tenants that have none of their own; without any nothing is bounded.
	Quotas tenant.Quotas
	// DefaultTimeout of a command (1 h) and the most that may be asked for (24 h).
	DefaultTimeout, MaxTimeout time.Duration
	// OutputLimit is how many bytes of each stream of a command are recorded as they come (1 GiB). A command may ask for less; more is
	// refused.
	OutputLimit uint64
	// StartDeadline is how long a command waits for its sandbox to become ready (10 min).
	StartDeadline time.Duration
	// OutputMemory bounds the output held for all commands together (64 MiB); full: programs are held back.
	OutputMemory int64
	// FloodRate is how many bytes a second all sandboxes that flood with output may write together while others work (8 MiB for each
	// CPU); less than 0: as many as they can.
	FloodRate int64
	// ToolboxGrace is how long a toolbox may be silent before its sandbox counts as lost (10 s).
	ToolboxGrace time.Duration
	// EgressResolver is the DNS server, HOST:PORT, that names are asked of which programs of sandboxes connect to; empty: those of the host.
	EgressResolver string
	// EgressRefuse are ranges of addresses that no sandbox may connect to, beside this host's own, the log's servers' and all that are not public.
	EgressRefuse []string
	// NoReceipts leaves the bucket of receipts to another instance.
	NoReceipts bool
}

func (c Config) withDefaults() Config {
	if c.Worker == "" {
		c.Worker = "local"
	}
	if c.OutputMemory == 0 {
		c.OutputMemory = 64 << 20
	}
	if c.FloodRate == 0 {
		c.FloodRate = floodPerCPU * int64(runtime.GOMAXPROCS(0))
	}
	return c
}

// floodPerCPU takes about a tenth of a CPU in this service and what is before and behind it.
const floodPerCPU = 8 << 20

// Validate reports every mistake at once.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	check := func(ok bool, field, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s: %s", field, what))
		}
	}
	check(c.StateDir != "" || c.AgentCert != "", "StateDir", "is needed where sandboxes have keepers")
	check((c.AgentCert == "") == (c.AgentKey == ""), "AgentCert, AgentKey", "are needed together")
	check(c.SealKeyFile != "", "SealKeyFile", "is needed")
	check(subject.ValidToken(c.Worker), "Worker", "must be 1 to 64 of A-Z a-z 0-9 _ -")
	check(c.MaxExecs >= 0 && c.MaxExecsPerSandbox >= 0, "MaxExecs", "cannot be negative")
	check(c.DefaultTimeout >= 0 && c.MaxTimeout >= 0 && c.StartDeadline >= 0 && c.ToolboxGrace >= 0, "DefaultTimeout, MaxTimeout, StartDeadline, ToolboxGrace", "cannot be negative")
	check(c.MaxTimeout == 0 || c.DefaultTimeout <= c.MaxTimeout, "DefaultTimeout", "cannot be over MaxTimeout")
	errs = append(errs, c.Quotas.Validate())
	_, err := c.refused()
	check(err == nil, "EgressRefuse", "must be ranges of addresses such as 8.8.8.0/24")
	if c.EgressResolver != "" {
		_, _, err = net.SplitHostPort(c.EgressResolver)
		check(err == nil, "EgressResolver", "must be HOST:PORT")
	}
	check(c.OutputMemory >= 1<<20, "OutputMemory", "must be at least 1 MiB")
	return errors.Join(errs...)
}

// refused are the ranges of EgressRefuse.
func (c Config) refused() (all []netip.Prefix, err error) {
	for _, text := range c.EgressRefuse {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// Deps are what the host of the service brings. Everything may be left out.
type Deps struct {
	NC       *nats.Conn
	JS       jetstream.JetStream
	Log      *slog.Logger
	Registry prometheus.Registerer
	Topology topology.Options
	Tracer   trace.TracerProvider
	// Toolbox replaces the client of a sandbox's keeper below StateDir.
	Toolbox func(sandbox string) *client.Client
}

// App is the service.
type App struct {
	cfg      Config
	deps     Deps
	ownsNC   bool
	log      *jslog.Log
	runner   *runner.Runner
	shares   *quota.Shares
	files    *files.Server
	tunnels  *tunnel.Set
	own      *wayout.Own
	ways     *wayout.Set
	settler  *settle.Settler
	receipts *receipt.Projection
	locator  *locate.Locator
	// toolboxes holds connections to keepers and agents; nil where Deps.Toolbox replaces it. agents is nil where there are only keepers.
	toolboxes *client.Pool
	agents    *client.Credentials
}

// New connects, makes what the worker needs on the server and reads the key. Call Run.
func New(ctx context.Context, cfg Config, deps Deps) (*App, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("exec configuration: %w", err)
	}
	a := &App{cfg: cfg.withDefaults(), deps: deps}
	if err := a.connect(); err != nil {
		return nil, err
	}
	if err := a.build(ctx); err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

func (a *App) connect() error {
	d := &a.deps
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if a.cfg.AgentCert != "" {
		credentials, err := client.LoadCredentials(a.cfg.AgentCert, a.cfg.AgentKey)
		if err != nil {
			return err
		}
		a.agents = credentials
	}
	if d.Toolbox == nil {
		a.toolboxes = client.NewRoutedPool(a.route)
		d.Toolbox = a.toolboxes.Client
	}
	if d.Tracer == nil {
		d.Tracer = noop.NewTracerProvider()
	}
	d.Toolbox = observed(d.Toolbox, d.Tracer.Tracer(scope), a.unanswered)
	if d.NC == nil {
		nc, err := nats.Connect(a.cfg.NATSURL, nats.Name("sandtrail-exec"), nats.MaxReconnects(-1))
		if err != nil {
			return fmt.Errorf("connect to NATS: %w", err)
		}
		d.NC, a.ownsNC = nc, true
	}
	if d.JS == nil {
		js, err := jetstream.New(d.NC)
		if err != nil {
			a.close()
			return fmt.Errorf("open JetStream: %w", err)
		}
		d.JS = js
	}
	return nil
}

func (a *App) close() {
	if a.toolboxes != nil {
		a.toolboxes.Close()
	}
	if a.ownsNC {
		a.deps.NC.Close()
	}
}

func (a *App) build(ctx context.Context) error {
	key, err := seal.Load(a.cfg.SealKeyFile)
	if err != nil {
		return fmt.Errorf("load seal key: %w", err)
	}
	if err := topology.EnsureWorker(ctx, a.deps.JS, a.cfg.Worker, a.deps.Topology); err != nil {
		return fmt.Errorf("ensure the worker's consumers: %w", err)
	}
	log := a.deps.Log.With("service", "exec", "worker", a.cfg.Worker)
	a.log = jslog.New(a.deps.JS)
	a.locator = locate.New(a.log)
	out, err := relay.New(ctx, a.deps.JS, topology.StreamOutput, relay.Options{
		Budget: semaphore.NewWeighted(a.cfg.OutputMemory), Fair: a.fair(), Log: log,
	})
	if err != nil {
		return err
	}
	kv, err := a.deps.JS.KeyValue(ctx, topology.BucketExec)
	if err != nil {
		return fmt.Errorf("open bucket %s: %w", topology.BucketExec, err)
	}
	// Replicas in front of one cluster have one worker's name.
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read the host's name: %w", err)
	}
	if a.shares, err = quota.NewShares(ctx, a.deps.JS, a.cfg.Worker+"@"+host, log); err != nil {
		return err
	}
	a.receipts = receipt.New(a.log, kv)
	a.settler = &settle.Settler{JS: a.deps.JS, Log: a.log, Relay: out, Logger: log}
	a.tunnels = &tunnel.Set{NC: a.deps.NC, Worker: a.cfg.Worker, Log: log}
	named, err := a.cfg.refused()
	if err != nil {
		return err
	}
	a.own = &wayout.Own{NC: a.deps.NC, Named: named, Log: log}
	a.ways = wayout.New(wayout.Config{
		Worker: a.cfg.Worker, JS: a.deps.JS, Events: a.log, Toolbox: a.deps.Toolbox, Log: log, Registerer: a.deps.Registry,
		Dialer: wayout.NewDialer(a.cfg.EgressResolver, a.own.Addresses),
	})
	a.files = &files.Server{
		NC: a.deps.NC, Worker: a.cfg.Worker, Owner: a.locator.Owner, Toolbox: a.deps.Toolbox, Log: log, Tracer: a.deps.Tracer.Tracer(scope),
		Connected: a.tunnels.Open,
		Resized: func(ctx context.Context, exec subject.Aggregate, size *commonv1.TerminalSize) error {
			return a.runner.Resized(ctx, exec, size)
		},
	}
	a.runner = runner.New(ctx, runner.Config{
		Worker: a.cfg.Worker, MaxExecs: a.cfg.MaxExecs, MaxExecsPerSandbox: a.cfg.MaxExecsPerSandbox,
		DefaultTimeout: a.cfg.DefaultTimeout, MaxTimeout: a.cfg.MaxTimeout, StartDeadline: a.cfg.StartDeadline,
		OutputLimit: a.cfg.OutputLimit, ToolboxGrace: a.cfg.ToolboxGrace, Log: log, Registerer: a.deps.Registry, Tracer: a.deps.Tracer,
	}, runner.Deps{
		NC: a.deps.NC, JS: a.deps.JS, Log: a.log, Relay: out, Key: key, Toolbox: a.deps.Toolbox, Alive: a.alive, Sandboxes: a.sandboxes,
		Loaded: a.locator.Note, Quotas: quota.NewBook(a.log, a.cfg.Quotas), Shares: a.shares, Ways: a.ways.Open,
	})
	return nil
}

func (a *App) fair() *relay.Fair {
	if a.cfg.FloodRate < 0 {
		return nil
	}
	return relay.NewFair(float64(a.cfg.FloodRate))
}

// lanes is how many commands are handled at once. A command holds a lane until its program is started, a few milliseconds.
const lanes = 64

// Run serves until ctx ends, then lets go of every program and leaves it running.
func (a *App) Run(ctx context.Context) error {
	defer a.close()
	defer a.runner.Close()
	defer a.tunnels.Close()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		// What was running comes first: its bounds count before new commands.
		if err := a.runner.Resume(ctx); err != nil && ctx.Err() == nil {
			return fmt.Errorf("resume execs: %w", err)
		}
		g.Go(func() error { return a.shares.Run(ctx) })
		return worker.Run(ctx, a.deps.JS, worker.Config{
			Service: "exec", Stream: topology.StreamCommands, Consumer: topology.ConsumerExec(a.cfg.Worker), Lanes: lanes,
			Log: a.deps.Log, Registerer: a.deps.Registry, MaxAttempts: commandAttempts,
		}, a.runner.Handle)
	})
	g.Go(func() error { return a.files.Run(ctx) })
	g.Go(func() error { return a.own.Run(ctx) })
	g.Go(func() error { return a.ways.Run(ctx) })
	g.Go(func() error { return a.settle(ctx) })
	if !a.cfg.NoReceipts {
		g.Go(func() error {
			return projection.New(a.deps.JS, a.receipts, projection.Options{Service: "exec", Log: a.deps.Log, Registerer: a.deps.Registry}).Run(ctx)
		})
	}
	err := g.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// commandAttempts is how often a command is delivered: one that waits for its sandbox comes back every few seconds.
const commandAttempts = 1000
