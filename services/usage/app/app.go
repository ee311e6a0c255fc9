// Package app is the usage service: it projects the facts of the log into rows of ClickHouse and answers queries for them.
package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/services/usage/internal/budget"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
	"github.com/sandtrail/sandtrail/services/usage/internal/engine"
	"github.com/sandtrail/sandtrail/services/usage/internal/project"
)

// Config of the service.
type Config struct {
	// ClickHouse is the address of a server, clickhouse://user:password@host:9000 or http://…. Empty: the built-in engine runs
	// as a child process.
	ClickHouse string
	// Cluster is the name of the replicas' cluster, as ClickHouse's configuration has it. Empty: one server.
	Cluster string
	// Dir holds the data of the built-in engine.
	Dir string
	// Cache is where the built-in engine's library stands or is put; empty: the default, see DefaultCache.
	Cache string
	// NativePort and HTTPPort are those of the built-in engine, on loopback. 0: 9000 and 8123 if they are free, otherwise any.
	// -1: any.
	NativePort, HTTPPort int
	// RollEvery is how often hours are added up: 15 s.
	RollEvery time.Duration
}

// Validate reports every mistake at once.
func (c Config) Validate() error {
	var errs []error
	if c.ClickHouse != "" {
		conn, err := clickhouse.Open(c.ClickHouse)
		if err != nil {
			errs = append(errs, fmt.Errorf("clickhouse: %w", err))
		} else {
			_, err := conn.OnCluster(c.Cluster)
			errs = append(errs, err, conn.Close())
		}
	}
	if c.ClickHouse == "" && c.Dir == "" {
		errs = append(errs, errors.New("dir: the built-in ClickHouse needs a directory for its data"))
	}
	if c.Dir != "" && !filepath.IsAbs(c.Dir) {
		errs = append(errs, errors.New("dir: must be absolute"))
	}
	for name, port := range map[string]int{"native port": c.NativePort, "http port": c.HTTPPort} {
		if port < -1 || port > 65535 {
			errs = append(errs, fmt.Errorf("%s: %d is not a port", name, port))
		}
	}
	if c.RollEvery < 0 {
		errs = append(errs, errors.New("roll interval: is negative"))
	}
	if c.NativePort > 0 && c.NativePort == c.HTTPPort {
		errs = append(errs, errors.New("http port: the native port has the same number"))
	}
	return errors.Join(errs...)
}

// Deps are what the service is built on. The streams and consumers of libs/topology must exist.
type Deps struct {
	NC         *nats.Conn
	JS         jetstream.JetStream
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Tracer makes a span of each batch; nil makes none.
	Tracer trace.TracerProvider
	// Progress gets a line for each long step of the start; may be nil.
	Progress func(string)
}

// Address is how people reach the rows.
type Address struct {
	// HTTP is a URL such as http://127.0.0.1:8123, empty for a server of one's own.
	HTTP string
	// Native is the host and port of the native protocol, empty for a server of one's own.
	Native string
	// Embedded says that it is the built-in engine.
	Embedded bool
}

// App is the service.
type App struct {
	engine    *engine.Engine
	conn      *clickhouse.Conn
	projector *project.Projector
	nc        *nats.Conn
	log       *slog.Logger
	rollups   *rollups
	budgets   *budget.Keeper
	rollEvery time.Duration
}

const (
	// schemaPatience bounds the migrations at the start, and how long ClickHouse may be out of reach then.
	schemaPatience = 2 * time.Minute
	firstPause     = 100 * time.Millisecond
	maxPause       = 5 * time.Second
)

// New starts the built-in engine where it is wanted and brings the schema up to date. Close must be called unless Run is.
func New(ctx context.Context, c Config, d Deps) (*App, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("configuration of usage: %w", err)
	}
	a := &App{nc: d.NC, log: d.Log, rollEvery: cmp.Or(c.RollEvery, rollEvery)}
	if err := a.open(ctx, c, d); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func (a *App) open(ctx context.Context, c Config, d Deps) error {
	address := c.ClickHouse
	if address == "" {
		if err := a.startEngine(ctx, c, d.Progress); err != nil {
			return err
		}
		address = a.engine.URL()
	}
	conn, err := clickhouse.Open(address)
	if err != nil {
		return err
	}
	a.conn = conn
	if conn, err = conn.OnCluster(c.Cluster); err != nil {
		return err
	}
	a.conn = conn
	if err := a.schema(ctx, d.JS); err != nil {
		return err
	}
	if a.rollups, err = newRollups(d.Registerer); err != nil {
		return err
	}
	a.budgets = budget.New(d.JS, jslog.New(d.JS), costs{a.conn}, time.Now)
	a.projector, err = project.New(ctx, project.Config{JS: d.JS, Sink: a.conn, Log: d.Log, Registerer: d.Registerer, Tracer: d.Tracer})
	return err
}

// schema brings the schema up to date. ClickHouse may be out of reach at the start as at any other time: that is waited out. What it refuses
// is final.
func (a *App) schema(ctx context.Context, js jetstream.JetStream) error {
	ctx, cancel := context.WithTimeout(ctx, schemaPatience)
	defer cancel()
	for wait := firstPause; ; wait = min(2*wait, maxPause) {
		err := a.conn.Upgrade(ctx, func(ctx context.Context) error {
			// Columns that a migration makes are empty in the rows that stand, and tables that it makes have none at all, whatever the checkpoint says.
			return project.Anew(ctx, js)
		})
		if err == nil || clickhouse.Refused(err) {
			return err
		}
		a.log.WarnContext(ctx, "ClickHouse is not there yet", "error", err)
		if pause.For(ctx, wait) != nil {
			return err
		}
	}
}

func (a *App) startEngine(ctx context.Context, c Config, progress func(string)) error {
	library, err := Prepare(ctx, c.Cache, progress)
	if err != nil {
		return err
	}
	a.engine, err = engine.Start(ctx, engine.Options{
		Library: library, Dir: c.Dir, Native: enginePort(c.NativePort), HTTP: enginePort(c.HTTPPort), Log: a.log,
	})
	return err
}

// enginePort turns a port of Config into one of engine.Options: there 0 is any port and negative the usual one.
func enginePort(p int) int {
	switch p {
	case 0:
		return -1
	case -1:
		return 0
	}
	return p
}

// Address is how people reach the rows.
func (a *App) Address() Address {
	if a.engine == nil {
		return Address{}
	}
	return Address{HTTP: a.engine.HTTP(), Native: a.engine.Native(), Embedded: true}
}

// Health says whether ClickHouse answers. While it does not, rows are late, not lost.
func (a *App) Health(ctx context.Context) error { return a.conn.Ping(ctx) }

// Run projects and answers queries until ctx ends, then ends the built-in engine. It returns nil when ctx ended.
func (a *App) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.projector.Run(ctx) })
	g.Go(func() error { return a.answer(ctx) })
	g.Go(func() error { return a.roll(ctx) })
	err := g.Wait()
	return errors.Join(err, a.Close())
}

// Close ends the built-in engine and the connection. It may be called twice.
func (a *App) Close() error {
	var err error
	if a.conn != nil {
		err = a.conn.Close()
	}
	if a.engine != nil {
		a.engine.Close()
	}
	return err
}
