package up

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/version"
	"github.com/sandtrail/sandtrail/libs/natsserver"
	"github.com/sandtrail/sandtrail/libs/projection"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
	exec "github.com/sandtrail/sandtrail/services/exec/app"
	gateway "github.com/sandtrail/sandtrail/services/gateway/app"
	gc "github.com/sandtrail/sandtrail/services/gc/app"
	lifecycle "github.com/sandtrail/sandtrail/services/lifecycle/app"
	usage "github.com/sandtrail/sandtrail/services/usage/app"
)

// emptyWorkspaces are kept ready, so that a create only renames one; each takes 1.4 MB of disk.
const emptyWorkspaces = 4

// worker is the name of the one worker that `up` runs.
const worker = "local"

// stack is what `up` runs.
type stack struct {
	*Stack
	tel      *telemetry.Telemetry
	progress *progress
	lock     *os.File
	nats     *natsserver.Server
	conns    []*nats.Conn
	topology topology.Options
}

// open locks the state and starts the log with its streams.
func (u *Up) open(ctx context.Context, out, logs io.Writer) (_ *stack, err error) {
	if err := u.resolve(); err != nil {
		return nil, err
	}
	s := &stack{Stack: &u.Stack, progress: newProgress(out), topology: topology.Options{Replicas: 1}}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.lock, err = lock(u.State); err != nil {
		return nil, err
	}
	if s.tel, err = u.telemetry(ctx, logs); err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(u.NATS)
	if err != nil {
		return nil, fmt.Errorf("--nats: %w", err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("--nats: %s is not a loopback address: the embedded server lets everybody in; run a server of your own for more than one host", u.NATS)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return nil, fmt.Errorf("--nats: %w", err)
	}
	if n == 0 {
		n = -1
	}
	s.nats, err = natsserver.Start(natsserver.Options{
		Dir: filepath.Join(u.State, "nats"), Host: host, Port: n, SyncInterval: u.SyncInterval.Every, SyncAlways: u.SyncInterval.Every == 0, Log: s.tel.Log,
	})
	if err != nil {
		return nil, err
	}
	nc, err := s.connect("up")
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	if err := topology.Ensure(ctx, js, s.topology); err != nil {
		return nil, fmt.Errorf("make streams and buckets: %w", err)
	}
	if err := topology.EnsureWorker(ctx, js, worker, s.topology); err != nil {
		return nil, fmt.Errorf("make the worker's consumers: %w", err)
	}
	if err := s.nats.Flush(); err != nil {
		return nil, err
	}
	if s.nats.Crashed() {
		s.tel.Log.WarnContext(ctx, "the machine went down while the log was open; views and rows are made again from it")
		if err := projection.Distrust(ctx, js); err != nil {
			return nil, err
		}
	}
	s.progress.done("log", "NATS JetStream at "+s.nats.URL())
	return s, nil
}

func (s *stack) connect(name string) (*nats.Conn, error) {
	nc, err := s.nats.Connect(nats.Name("sandtrail-"+name), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			// A slow reader of live output reads the stream instead.
			if !errors.Is(err, nats.ErrSlowConsumer) {
				s.tel.Log.Warn("NATS reported an error", "connection", name, "error", err)
			}
		}))
	if err == nil {
		s.conns = append(s.conns, nc)
	}
	return nc, err
}

// close ends what open and serve have begun, newest first.
func (s *stack) close() {
	for _, nc := range s.conns {
		nc.Close()
	}
	if s.nats != nil {
		s.nats.Shutdown()
	}
	if s.tel != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		if err := s.tel.Shutdown(ctx); err != nil {
			s.tel.Log.Warn("the last traces were not sent", "error", err)
		}
	}
	if s.lock != nil {
		_ = os.Remove(filepath.Join(s.State, "up.json"))
		_ = s.lock.Close()
	}
}

func (s *Stack) sealKey() string { return filepath.Join(s.State, "keys", "seal.key") }

// auditKey is the key that signs the log; its public half lies beside it, under the same name and .pub.
func (s *Stack) auditKey() string { return filepath.Join(s.State, "keys", "audit.pem") }

// webhookKey is the key that secrets of webhooks are sealed with; the CLI seals with it too.
func (s *Stack) webhookKey() string { return filepath.Join(s.State, "keys", "webhook.key") }

func (s *stack) lifecycleConfig() lifecycle.Config {
	return lifecycle.Config{
		Worker: worker, StateDir: s.State, SealKeyFile: s.sealKey(),
		Driver: lifecycle.DriverConfig{CacheDir: s.Cache, Pool: emptyWorkspaces, Progress: s.progress.step},
	}
}

// prepare gets what is missing: gVisor, the toolbox and the image, and beside it the built-in ClickHouse.
func (s *stack) prepare(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return lifecycle.Prepare(ctx, s.lifecycleConfig(), s.tel.Log, s.progress.step) })
	if s.ClickHouse == "" {
		g.Go(func() error {
			_, err := usage.Prepare(ctx, s.Cache, func(note string) { s.progress.step("clickhouse", 0, 0, note) })
			return err
		})
	}
	return g.Wait()
}

func (u *Up) prepareOnly(ctx context.Context, out, logs io.Writer) error {
	if err := u.resolve(); err != nil {
		return err
	}
	tel, err := u.telemetry(ctx, logs)
	if err != nil {
		return err
	}
	s := &stack{Stack: &u.Stack, progress: newProgress(out), tel: tel}
	if s.lock, err = lock(u.State); err != nil {
		return err
	}
	defer s.close()
	if err := s.prepare(ctx); err != nil {
		return err
	}
	s.progress.done("prepared", "everything is there")
	return nil
}

// serve prepares, runs every service until ctx ends, and calls ready once callers are let in.
func (s *stack) serve(ctx context.Context, u *Up, ready func(Addresses) error) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.stored(ctx) })
	rows, err := s.usage(ctx)
	if err != nil {
		return err
	}
	g.Go(func() error { return named("usage", rows.Run(ctx)) })
	if err := s.services(ctx, g, u); err != nil {
		return errors.Join(err, rows.Close())
	}
	nc, err := s.connect("gateway")
	if err != nil {
		return err
	}
	config := u.Into(gateway.Config{
		GRPC: u.GRPC, HTTP: u.HTTP, KeysFile: u.KeysFile, RequireKeys: u.RequireKeys, SealKeyFile: s.sealKey(), Quotas: tenant.ParseQuotas(u.Quota),
	})
	edge, err := gateway.New(ctx, config, gateway.Deps{
		NC: nc, Log: s.log("gateway"), Registry: s.tel.Registry, Tracer: s.tracer("gateway"),
		Checks: map[string]func() error{"clickhouse": func() error { return rows.Health(ctx) }}, Version: version.Version,
	})
	if err != nil {
		return err
	}
	g.Go(func() error { return named("gateway", edge.Run(ctx)) })
	at := rows.Address()
	err = ready(Addresses{
		PID: os.Getpid(), GRPC: edge.GRPC(), HTTP: edge.HTTP(), NATS: s.nats.URL(), ClickHouseHTTP: at.HTTP, ClickHouseNative: at.Native,
	})
	if err != nil {
		return err
	}
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// stored waits until the log can be stored no longer. Then nothing can be done before the server is started anew, and whoever runs this
// has to know.
func (s *stack) stored(ctx context.Context) error {
	select {
	case err := <-s.nats.Failed():
		return fmt.Errorf("the log cannot be written; make room on the disk of %s, then start again (sandboxes go on meanwhile): %w", s.State, err)
	case <-ctx.Done():
		return nil
	}
}

func (s *stack) usage(ctx context.Context) (*usage.App, error) {
	nc, err := s.connect("usage")
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	return usage.New(ctx, usage.Config{ClickHouse: s.ClickHouse, Dir: filepath.Join(s.State, "clickhouse"), Cache: s.Cache}, usage.Deps{
		NC: nc, JS: js, Log: s.log("usage"), Registerer: s.tel.Registry, Tracer: s.tracer("usage"),
		Progress: func(note string) { s.progress.step("clickhouse", 0, 0, note) },
	})
}

// services starts lifecycle, exec and gc.
func (s *stack) services(ctx context.Context, g *errgroup.Group, u *Up) error {
	conns := map[string]*nats.Conn{}
	for _, name := range []string{"lifecycle", "exec", "gc"} {
		nc, err := s.connect(name)
		if err != nil {
			return err
		}
		conns[name] = nc
	}
	config := s.lifecycleConfig()
	config.Quotas = tenant.ParseQuotas(u.Quota)
	life, err := lifecycle.New(ctx, config, lifecycle.Deps{
		NC: conns["lifecycle"], Log: s.log("lifecycle"), Registry: s.tel.Registry, Tracer: s.tracer("lifecycle"), Topology: s.topology,
	})
	if err != nil {
		return err
	}
	js, err := jetstream.New(conns["exec"])
	if err != nil {
		return err
	}
	run, err := exec.New(ctx, exec.Config{
		StateDir: s.State, Worker: worker, SealKeyFile: s.sealKey(), Quotas: tenant.ParseQuotas(u.Quota),
		EgressResolver: u.EgressResolver, EgressRefuse: u.EgressRefuse,
	}, exec.Deps{
		NC: conns["exec"], JS: js, Log: s.log("exec"), Registry: s.tel.Registry, Tracer: s.tracer("exec"), Topology: s.topology,
	})
	if err != nil {
		return err
	}
	sweep, err := gc.New(ctx, gc.Config{AuditKeyFile: s.auditKey(), WebhookKeyFile: s.webhookKey(), WebhookPrivate: u.WebhookPrivate}, gc.Deps{NC: conns["gc"], Log: s.log("gc"), Registry: s.tel.Registry, Tracer: s.tracer("gc")})
	if err != nil {
		return err
	}
	g.Go(func() error { return named("lifecycle", life.Run(ctx)) })
	g.Go(func() error { return named("exec", run.Run(ctx)) })
	g.Go(func() error { return named("gc", sweep.Run(ctx)) })
	return nil
}

func (s *stack) log(service string) *slog.Logger { return s.tel.Log.With("part", service) }

// tracer names a service as it is named when it is a process of its own.
func (s *stack) tracer(service string) trace.TracerProvider { return s.tel.For("sandtrail-" + service) }

func named(service string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%s: %w", service, err)
}
