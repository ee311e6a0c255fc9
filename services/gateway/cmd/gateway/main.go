// Command gateway runs the gateway as a process of its own, against a NATS server by URL.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/sandtrail/sandtrail/libs/chassis"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/services/gateway/app"
)

type flags struct {
	chassis.Flags
	app.EdgeFlags
	GRPC        string            `name:"grpc" default:"127.0.0.1:50051" help:"Address of the gRPC listener."`
	HTTP        string            `name:"http" default:"127.0.0.1:8080" help:"Address of the HTTP API."`
	KeysFile    string            `help:"File with API keys, beside those in the log; without one anybody on this host is let in (development mode)."`
	RequireKeys bool              `help:"No development mode: every call needs a key, of the file or the log."`
	Image       string            `default:"ghcr.io/paper-board/sandbox-python:v0.1.0" help:"Image of a sandbox whose request over HTTP names none."`
	CORSOrigins []string          `name:"cors-origins" placeholder:"ORIGIN" help:"Origins that browsers may call the HTTP API from."`
	Quota       map[string]uint64 `placeholder:"NAME=N" help:"Quotas of tenants that have none of their own, for who asks. Give gateway, lifecycle and exec the same."`
	SealKeyFile string            `required:"" help:"File with the key that encrypts secrets on their way to a worker."`
}

func (f *flags) config() app.Config {
	return f.Into(app.Config{
		GRPC: f.GRPC, HTTP: f.HTTP, Ops: f.Ops, KeysFile: f.KeysFile, RequireKeys: f.RequireKeys, SealKeyFile: f.SealKeyFile,
		Image: f.Image, CORSOrigins: f.CORSOrigins, Quotas: tenant.ParseQuotas(f.Quota),
	})
}

func main() {
	var f flags
	kong.Parse(&f, chassis.Options("gateway", "The edge: gRPC and the HTTP API; health and metrics beside it, unless --ops gives them an address of their own.")...)
	config := f.config()
	// The gateway serves them itself: it knows more of its health than any service does.
	f.Flags.Ops = ""
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(chassis.Run(ctx, "gateway", f.Flags, config.Validate, func(ctx context.Context, h chassis.Host) (chassis.Service, error) {
		return app.New(ctx, config, app.Deps{NC: h.NC, Log: h.Log, Registry: h.Registry, Tracer: h.Tracer})
	}))
}
