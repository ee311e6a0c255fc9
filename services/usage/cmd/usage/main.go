// Command usage runs the usage service: the log's facts become rows of ClickHouse.
package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/sandtrail/sandtrail/libs/chassis"
	"github.com/sandtrail/sandtrail/services/usage/app"
)

type flags struct {
	chassis.Flags
	ClickHouse string `name:"clickhouse" help:"Address of a ClickHouse server, clickhouse://user:password@host:9000 (unless set, the built-in one runs)."`
	Cluster    string `name:"clickhouse-cluster" help:"The cluster of replicas that the server belongs to: tables are made on all of them, replicated."`
	Dir        string `name:"dir" default:"/var/lib/sandtrail/clickhouse" help:"Data directory of the built-in ClickHouse."`
	Cache      string `name:"cache" help:"Directory for downloads (by default sandtrail in the user's cache)."`
	NativePort int    `name:"clickhouse-port" help:"Native port of the built-in ClickHouse on loopback (9000 if free)."`
	HTTPPort   int    `name:"clickhouse-http-port" help:"HTTP port of the built-in ClickHouse on loopback (8123 if free)."`
}

func (f *flags) config() app.Config {
	dir, err := filepath.Abs(f.Dir)
	if err != nil {
		dir = f.Dir
	}
	return app.Config{ClickHouse: f.ClickHouse, Cluster: f.Cluster, Dir: dir, Cache: f.Cache, NativePort: f.NativePort, HTTPPort: f.HTTPPort}
}

// Validate is called by kong.
func (f *flags) Validate() error { return errors.Join(f.Flags.Validate(), f.config().Validate()) }

func main() {
	if app.IsEngine() {
		os.Exit(app.EngineMain())
	}
	var f flags
	kong.Parse(&f, chassis.Options("usage", "Projects the event log into ClickHouse.")...)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(chassis.Run(ctx, "usage", f.Flags, f.config().Validate, func(ctx context.Context, h chassis.Host) (chassis.Service, error) {
		a, err := app.New(ctx, f.config(), app.Deps{
			NC: h.NC, JS: h.JS, Log: h.Log, Registerer: h.Registry, Tracer: h.Tracer, Progress: func(s string) { h.Log.Info(s) },
		})
		if err == nil && a.Address().Embedded {
			h.Log.Info("ClickHouse serves", "http", a.Address().HTTP, "native", a.Address().Native)
		}
		return a, err
	}))
}
