package up

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/sandtrail/sandtrail/libs/chassis"
	"github.com/sandtrail/sandtrail/libs/credential"
	"github.com/sandtrail/sandtrail/libs/permission"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
	exec "github.com/sandtrail/sandtrail/services/exec/app"
	lifecycle "github.com/sandtrail/sandtrail/services/lifecycle/app"
)

// Worker is `sandtrail worker`: this host's lifecycle (worker role) and exec service in one process, against a NATS server that others run.
// It dials and listens nowhere, but for --ops.
type Worker struct {
	NATS        string          `name:"nats" default:"nats://127.0.0.1:4222" env:"SANDTRAIL_NATS" placeholder:"URL" group:"The log" help:"The NATS server; may hold credentials, which are never printed."`
	Proof       credential.NATS `embed:""`
	Provisioned bool            `env:"SANDTRAIL_PROVISIONED" help:"This worker's consumers are made by sandtrail topology ensure --worker: wait for them, make none."`

	Name         string            `required:"" env:"SANDTRAIL_WORKER" help:"Its name in the fleet: 1 to 64 of A-Z a-z 0-9 _ -. Give a host the same one each time: its sandboxes are known by it."`
	Region       string            `env:"SANDTRAIL_REGION" help:"Region of this host, which sandboxes may ask for."`
	Provider     string            `env:"SANDTRAIL_PROVIDER" help:"Whose host this is, which sandboxes may ask for. Default: local."`
	Labels       map[string]string `name:"label" placeholder:"NAME=VALUE" help:"What else sandboxes may ask for, such as disk=fast; may be repeated, at most 32."`
	Tenants      []string          `name:"tenant" placeholder:"ID" help:"Take sandboxes of these tenants only; may be repeated."`
	State        string            `default:"${state}" type:"path" env:"SANDTRAIL_STATE" help:"Directory for all that this worker keeps: sandboxes, workspaces, images. One for each worker."`
	Cache        string            `type:"path" env:"SANDTRAIL_CACHE" help:"Directory for what is fetched or built once: runsc, the default image. Default: sandtrail in the user's cache."`
	SealKeyFile  string            `type:"path" env:"SANDTRAIL_SEAL_KEY_FILE" placeholder:"FILE" help:"File with the key that the gateway encrypts secrets with, a copy of the gateway's; of up it is STATE/keys/seal.key."`
	Runsc        string            `type:"path" env:"SANDTRAIL_RUNSC" placeholder:"FILE" help:"runsc binary to use instead of the one that is fetched."`
	Toolbox      string            `type:"path" env:"SANDTRAIL_TOOLBOX" placeholder:"FILE" help:"toolbox binary to use instead of the one beside this program."`
	MaxSandboxes int               `default:"200" env:"SANDTRAIL_MAX_SANDBOXES" help:"Sandboxes at once on this host."`
	MaxCPUMillis uint64            `name:"max-cpu-millis" env:"SANDTRAIL_MAX_CPU_MILLIS" help:"The most millicores that one sandbox may have here. Default: all that the host has."`
	MaxMemory    uint64            `name:"max-memory-bytes" env:"SANDTRAIL_MAX_MEMORY_BYTES" help:"The most memory that one sandbox may have here. Default: all that the host has."`

	Quota          map[string]uint64 `placeholder:"NAME=N" help:"Quotas of tenants that have none of their own; may be repeated. Give each worker what up, or gateway and lifecycle, were given."`
	EgressResolver string            `env:"SANDTRAIL_EGRESS_RESOLVER" placeholder:"HOST:PORT" help:"DNS server that is asked for what programs of sandboxes connect to. Default: those of the host."`
	EgressRefuse   []string          `env:"SANDTRAIL_EGRESS_REFUSE" placeholder:"CIDR" help:"Addresses that no sandbox may connect to, beside this host's, the log's servers' and all that are not public: those of your own services that are."`
	StartDeadline  time.Duration     `default:"5m" env:"SANDTRAIL_START_DEADLINE" help:"How long a create may take."`
	KeepWorkspace  time.Duration     `default:"24h" env:"SANDTRAIL_KEEP_WORKSPACE" help:"How long the workspace of a destroyed sandbox stays."`
	OrphanGrace    time.Duration     `default:"2m" env:"SANDTRAIL_ORPHAN_GRACE" help:"How long something that runs here and that the log does not know is left alone."`

	Ops       string `env:"SANDTRAIL_OPS" placeholder:"ADDR" help:"Address for health and metrics (none unless set: nothing listens)."`
	OTLP      string `name:"otlp-endpoint" env:"SANDTRAIL_OTLP_ENDPOINT" help:"OTLP endpoint for traces (none unless set)."`
	LogLevel  string `default:"info" enum:"debug,info,warn,error" env:"SANDTRAIL_LOG_LEVEL" help:"Least level that is logged to stderr: ${enum}."`
	LogFormat string `default:"text" enum:"json,text" env:"SANDTRAIL_LOG_FORMAT" help:"Log as ${enum}."`

	Check bool   `name:"validate" help:"Check the configuration and end."`
	Rules string `name:"rules" placeholder:"NKEY" help:"Print the entry of users in the configuration of the NATS server that lets this worker in by the public key of its nkey (or a $$VARIABLE), and end."`
}

// Serve runs the worker until it is interrupted and returns the process's exit code. Sandboxes and their programs go on without it, and the
// next one of this name on the same state finds them.
func (w *Worker) Serve(out io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second interrupt ends the process at once
	return chassis.Run(ctx, "worker", w.flags(), w.Mistakes, func(ctx context.Context, h chassis.Host) (chassis.Service, error) {
		return w.join(ctx, h, newProgress(out))
	})
}

// flags are those of a service. Streams and buckets are made by who runs the fleet, never by who joins it.
func (w *Worker) flags() chassis.Flags {
	proof := w.Proof
	if proof.Inbox == "" {
		proof.Inbox = permission.Inbox(permission.Host)
	}
	return chassis.Flags{
		NATS: w.NATS, Credential: proof, Provisioned: true, Replicas: 1, Ops: w.Ops, OTLP: w.OTLP, LogLevel: w.LogLevel, LogFormat: w.LogFormat,
		Check: w.Check,
	}
}

// Mistakes reports every one at once; that the files can be read is part of it.
func (w *Worker) Mistakes() error {
	errs := []error{w.lifecycleConfig().Validate()}
	for _, f := range []struct{ flag, path string }{{"seal-key-file", w.SealKeyFile}, {"runsc", w.Runsc}, {"toolbox", w.Toolbox}} {
		errs = append(errs, credential.Readable(f.flag, f.path))
	}
	return errors.Join(errs...)
}

func (w *Worker) lifecycleConfig() lifecycle.Config {
	return lifecycle.Config{
		Worker: w.Name, Region: w.Region, Provider: w.Provider, Labels: w.Labels, Tenants: w.Tenants, Roles: []string{lifecycle.RoleWorker}, StateDir: w.State, SealKeyFile: w.SealKeyFile,
		MaxSandboxes: w.MaxSandboxes, WorkerCPUMillis: w.MaxCPUMillis, WorkerMemoryBytes: w.MaxMemory, Quotas: tenant.ParseQuotas(w.Quota),
		StartDeadline: w.StartDeadline, KeepWorkspace: w.KeepWorkspace, OrphanGrace: w.OrphanGrace,
		Driver: lifecycle.DriverConfig{CacheDir: w.Cache, Runsc: w.Runsc, Toolbox: w.Toolbox, Pool: emptyWorkspaces},
	}
}

// joined is a worker that is part of a fleet.
type joined struct {
	life *lifecycle.App
	run  *exec.App
	// close lets go of the state and of the second connection.
	close func()
}

// join locks the state, gets what is missing and opens both services. Commands and output have a connection each, so that a flood of the
// one holds up nothing of the other.
func (w *Worker) join(ctx context.Context, h chassis.Host, p *progress) (_ *joined, err error) {
	if err := w.resolve(); err != nil {
		return nil, err
	}
	held, err := lock(w.State)
	if err != nil {
		return nil, err
	}
	j := &joined{close: func() { _ = held.Close() }}
	defer func() {
		if err != nil {
			j.close()
		}
	}()
	config := w.lifecycleConfig()
	config.Driver.Progress = p.step
	if err := lifecycle.Prepare(ctx, config, h.Log, p.step); err != nil {
		return nil, err
	}
	own := topology.Options{Given: w.Provisioned}
	err = chassis.Await(ctx, h.Log, "this worker's consumers", func(ctx context.Context) error {
		return topology.EnsureWorker(ctx, h.JS, w.Name, own)
	})
	if err != nil {
		return nil, err
	}
	j.life, err = lifecycle.New(ctx, config, lifecycle.Deps{
		NC: h.NC, Log: h.Log.With("part", "lifecycle"), Registry: h.Registry, Tracer: h.Tracer, Topology: own,
	})
	if err != nil {
		return nil, err
	}
	nc, err := chassis.Connect(w.NATS, w.flags().Credential, "worker-exec", h.Log)
	if err != nil {
		return nil, err
	}
	j.close = func() {
		nc.Close()
		_ = held.Close()
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	j.run, err = exec.New(ctx, exec.Config{
		StateDir: w.State, Worker: w.Name, SealKeyFile: w.SealKeyFile, Quotas: tenant.ParseQuotas(w.Quota),
		EgressResolver: w.EgressResolver, EgressRefuse: w.EgressRefuse,
	}, exec.Deps{
		NC: nc, JS: js, Log: h.Log.With("part", "exec"), Registry: h.Registry, Tracer: h.Tracer, Topology: own,
	})
	if err != nil {
		return nil, err
	}
	p.done("worker", fmt.Sprintf("%s has joined; its sandboxes are below %s", w.Name, w.State))
	return j, nil
}

// Run serves until ctx ends or one of the services cannot go on.
func (j *joined) Run(ctx context.Context) error {
	defer j.close()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return named("lifecycle", j.life.Run(ctx)) })
	g.Go(func() error { return named("exec", j.run.Run(ctx)) })
	return g.Wait()
}

// resolve makes the paths absolute: children run elsewhere.
func (w *Worker) resolve() error {
	s := Stack{State: w.State, Cache: w.Cache}
	if err := s.resolve(); err != nil {
		return err
	}
	w.State, w.Cache = s.State, s.Cache
	var err error
	w.SealKeyFile, err = filepath.Abs(w.SealKeyFile)
	return err
}

// User renders the entry of users that lets the worker in by an nkey, for the server's configuration.
func (w *Worker) User() (string, error) {
	rules, err := permission.Of(permission.Host, w.Name)
	if err != nil {
		return "", err
	}
	return permission.Entry(permission.User{Nkey: w.Rules, Rules: rules})
}
