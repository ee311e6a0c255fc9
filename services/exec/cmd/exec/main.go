// Command exec runs the exec service of one worker as a process of its own, against a NATS server by URL.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sandtrail/sandtrail/libs/chassis"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/services/exec/app"
)

type flags struct {
	chassis.Flags
	State              string            `name:"state" help:"State directory that holds this worker's sandboxes that have keepers."`
	AgentCert          string            `help:"File with the certificate by which sandboxes' agents know this service."`
	AgentKey           string            `help:"File with its key."`
	Worker             string            `name:"worker" default:"local" help:"Name of this worker."`
	SealKeyFile        string            `required:"" help:"File with the key that opens environments and standard inputs."`
	MaxExecs           int               `default:"256" help:"Most commands at once on this worker."`
	MaxExecsPerSandbox int               `default:"32" help:"Most commands at once in one sandbox."`
	DefaultTimeout     time.Duration     `default:"1h" help:"Timeout of a command that asks for none."`
	MaxTimeout         time.Duration     `default:"24h" help:"Longest timeout that may be asked for."`
	OutputLimit        uint64            `default:"1073741824" help:"Bytes of each output stream of a command that are recorded as they come."`
	FloodRate          int64             `help:"Bytes a second that all sandboxes which flood with output may write together while others work; 8 MiB for each CPU if not set, below 0 without a bound."`
	Quota              map[string]uint64 `placeholder:"NAME=N" help:"Quotas of tenants that have none of their own: execs and output_bytes count here. Give gateway, lifecycle and exec the same."`
	EgressResolver     string            `placeholder:"HOST:PORT" help:"DNS server that is asked for what programs of sandboxes connect to. Default: those of the host."`
	EgressRefuse       []string          `placeholder:"CIDR" help:"Addresses that no sandbox may connect to, beside this host's, the log's servers' and all that are not public: those of your own services that are."`
	StartDeadline      time.Duration     `default:"10m" help:"How long a command waits for its sandbox to become ready."`
}

func (f *flags) config() app.Config {
	return app.Config{
		StateDir: f.State, AgentCert: f.AgentCert, AgentKey: f.AgentKey, Worker: f.Worker, SealKeyFile: f.SealKeyFile, MaxExecs: f.MaxExecs,
		MaxExecsPerSandbox: f.MaxExecsPerSandbox, DefaultTimeout: f.DefaultTimeout, MaxTimeout: f.MaxTimeout,
		StartDeadline: f.StartDeadline, OutputLimit: f.OutputLimit, FloodRate: f.FloodRate,
		EgressResolver: f.EgressResolver, EgressRefuse: f.EgressRefuse, Quotas: tenant.ParseQuotas(f.Quota),
	}
}

func main() {
	var f flags
	kong.Parse(&f, chassis.Options("exec", "Runs commands in the sandboxes of one worker.")...)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(chassis.Run(ctx, "exec", f.Flags, f.config().Validate, func(ctx context.Context, h chassis.Host) (chassis.Service, error) {
		return app.New(ctx, f.config(), app.Deps{
			NC: h.NC, JS: h.JS, Log: h.Log, Registry: h.Registry, Tracer: h.Tracer, Topology: h.Topology,
		})
	}))
}
