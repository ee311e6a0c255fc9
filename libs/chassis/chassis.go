// Package chassis is what every service has in common when it runs as a process of its own: flags, the connection to NATS,
// telemetry, health and metrics, and an orderly end.
package chassis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/sandtrail/sandtrail/libs/credential"
	"github.com/sandtrail/sandtrail/libs/ops"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// Flags that every service takes. Each is also an environment variable SANDTRAIL_<FLAG>.
type Flags struct {
	NATS        string          `name:"nats" default:"nats://127.0.0.1:4222" help:"URL of the NATS server; may hold credentials, which are never printed."`
	Credential  credential.NATS `embed:""`
	Provisioned bool            `name:"provisioned" help:"Streams, buckets and consumers are made by sandtrail topology ensure: wait for them, make and change none."`
	Replicas    int             `name:"replicas" default:"1" help:"Replicas of streams and buckets, at least: 1 or 3. What has more keeps them."`
	Ops         string          `name:"ops" help:"Address for health and metrics (none unless set)."`
	OTLP        string          `name:"otlp-endpoint" help:"OTLP endpoint for traces (none unless set)."`
	LogLevel    string          `name:"log-level" default:"info" enum:"debug,info,warn,error" help:"Least level that is logged: ${enum}."`
	LogFormat   string          `name:"log-format" default:"json" enum:"json,text" help:"Log as ${enum}."`
	Check       bool            `name:"validate" help:"Check the configuration and end."`
}

// Validate reports every mistake at once.
func (f Flags) Validate() error {
	var errs []error
	if f.Replicas != 1 && f.Replicas != 3 && f.Replicas != 5 {
		errs = append(errs, fmt.Errorf("--replicas: %d is not 1, 3 or 5", f.Replicas))
	}
	if f.Ops != "" {
		if _, _, err := net.SplitHostPort(f.Ops); err != nil {
			errs = append(errs, fmt.Errorf("--ops: %w", err))
		}
	}
	return errors.Join(append(errs, f.Credential.Validate())...)
}

// Host is what a service is built on.
type Host struct {
	NC       *nats.Conn
	JS       jetstream.JetStream
	Log      *slog.Logger
	Registry *prometheus.Registry
	Tracer   trace.TracerProvider
	Topology topology.Options
}

// Service runs until its context ends. One that returns nil before, having done what there was to do, ends the process with it.
type Service interface {
	Run(ctx context.Context) error
}

// Options of the command line of a service.
func Options(name, description string) []kong.Option {
	return []kong.Option{
		kong.Name("sandtrail-" + name), kong.Description(description), kong.DefaultEnvars("SANDTRAIL"), kong.UsageOnError(),
	}
}

// Run connects, builds the service and runs it until ctx ends, it is done or it fails. It returns the process's exit code: 0, or
// 1 with the reason logged. With --validate it only checks the flags, asks validate (nil: nothing else can be wrong) and touches
// neither NATS nor anything that build would make.
func Run(ctx context.Context, name string, f Flags, validate func() error, build func(context.Context, Host) (Service, error)) int {
	t, err := telemetry.Setup(ctx, telemetry.Config{Service: "sandtrail-" + name, OTLPEndpoint: f.OTLP, LogLevel: f.LogLevel, LogFormat: f.LogFormat})
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandtrail-"+name+":", err)
		return 1
	}
	code := 0
	if err := run(ctx, name, f, t, validate, build); err != nil && !errors.Is(err, context.Canceled) {
		t.Log.ErrorContext(ctx, "the service ended", "error", err)
		code = 1
	}
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := t.Shutdown(flush); err != nil {
		t.Log.WarnContext(ctx, "the last traces were not sent", "error", err)
	}
	return code
}

func run(
	ctx context.Context, name string, f Flags, t *telemetry.Telemetry, validate func() error, build func(context.Context, Host) (Service, error),
) error {
	if err := check(f, validate); err != nil || f.Check {
		return err
	}
	nc, err := Connect(f.NATS, f.Credential, name, t.Log)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("open JetStream: %w", err)
	}
	o := topology.Options{Replicas: f.Replicas, Given: f.Provisioned}
	if err := Await(ctx, t.Log, "streams and buckets", func(ctx context.Context) error { return topology.Ensure(ctx, js, o) }); err != nil {
		return err
	}
	if risks, err := topology.Risks(ctx, js); err != nil {
		t.Log.WarnContext(ctx, "cannot tell how safely the log is kept", "error", err)
	} else {
		for _, r := range risks {
			t.Log.WarnContext(ctx, "the log is kept less safely than it could be", "risk", r)
		}
	}
	s, err := build(ctx, Host{NC: nc, JS: js, Log: t.Log, Registry: t.Registry, Tracer: t.Tracer, Topology: o})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer stop() // health and metrics are of no use to anybody once the service is done
		return s.Run(ctx)
	})
	if f.Ops != "" {
		g.Go(func() error { return serveOps(ctx, f.Ops, t.Registry, nc) })
	}
	t.Log.InfoContext(ctx, "running", "service", name)
	return g.Wait()
}

func check(f Flags, validate func() error) error {
	errs := []error{f.Validate()}
	if validate != nil {
		errs = append(errs, validate())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	return nil
}

// pingEvery bounds, times three, for how long a connection that is dead without being closed is taken for alive: nothing comes and
// nothing goes meanwhile.
const pingEvery = 2 * time.Second

// Connect opens a connection that reconnects for ever. Errors never show the URL, which may hold a password.
func Connect(url string, c credential.NATS, name string, log *slog.Logger) (*nats.Conn, error) {
	options, err := c.Options(name)
	if err != nil {
		return nil, err
	}
	options = append(options,
		nats.Name("sandtrail-"+name), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true), nats.ReconnectWait(250*time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, time.Second), nats.PingInterval(pingEvery), nats.MaxPingsOutstanding(2),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("disconnected from NATS", "error", err)
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { log.Info("connected to NATS again") }),
		nats.ErrorHandler(func(_ *nats.Conn, s *nats.Subscription, err error) {
			// A slow reader of live output reads the stream instead: expected, and told by its own metric.
			if errors.Is(err, nats.ErrSlowConsumer) {
				return
			}
			subject := ""
			if s != nil {
				subject, _, _ = strings.Cut(s.Subject, ".")
			}
			log.Warn("NATS reported an error", "root", subject, "error", err)
		}),
	)
	nc, err := nats.Connect(url, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	return nc, nil
}

// Await tries fn until it succeeds or ctx ends, at most every 2 s.
func Await(ctx context.Context, log *slog.Logger, what string, fn func(context.Context) error) error {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		try, cancel := context.WithTimeout(ctx, 10*time.Second)
		err := fn(try)
		cancel()
		if err == nil {
			return nil
		}
		log.WarnContext(ctx, "waiting", "for", what, "error", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}

func serveOps(ctx context.Context, addr string, registry *prometheus.Registry, nc *nats.Conn) error {
	connected := ops.Check{Name: "nats", Fn: func() error {
		if nc.IsConnected() {
			return nil
		}
		return fmt.Errorf("not connected (%s)", nc.Status())
	}}
	s := &http.Server{Addr: addr, Handler: ops.Handler(registry, connected), ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health and metrics: %w", err)
	}
	return nil
}
