// Command lifecycle runs lifecycle as a process of its own, against a NATS server by URL: schedulers anywhere, and one worker on
// each host that runs sandboxes.
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
	"github.com/sandtrail/sandtrail/services/lifecycle/app"
)

type flags struct {
	chassis.Flags
	Worker        string            `default:"local" help:"Name of this host; the exec service of the same host has the same."`
	Region        string            `help:"Region of this host."`
	Provider      string            `help:"Whose host this is; local unless set."`
	Label         map[string]string `placeholder:"NAME=VALUE" help:"What else sandboxes may ask for, such as disk=fast; may be repeated, at most 32 (worker role)."`
	Tenant        []string          `placeholder:"ID" help:"Take sandboxes of these tenants only (worker role)."`
	Roles         []string          `default:"scheduler,worker" help:"Roles of this process: scheduler, worker."`
	State         string            `help:"State directory (worker role with the driver gvisor)."`
	SealKeyFile   string            `help:"File with the key that the gateway encrypts secrets with (worker role)."`
	Cache         string            `help:"Directory of what is fetched and built once; a directory of the user's unless set."`
	Runsc         string            `help:"runsc binary to use instead of the one that is fetched."`
	Toolbox       string            `help:"toolbox binary to use instead of the one that is built."`
	Driver        string            `default:"gvisor" help:"What runs the sandboxes of this worker: gvisor, on this host, or kube, in a cluster (worker role)."`
	Kubeconfig    string            `help:"File with the way to the cluster; unset: this process runs in a pod of it (driver kube)."`
	ClusterFile   string            `help:"File that says what sandboxes are in the cluster, see docs/KUBERNETES.md (driver kube)."`
	AgentCA       string            `name:"agent-ca" help:"File with the certificate of the authority of those who call agents (driver kube)."`
	AgentCert     string            `help:"File with this process's certificate under it (driver kube)."`
	AgentKey      string            `help:"File with its key (driver kube)."`
	PodUsage      string            `default:"kubelet" help:"Who tells what sandboxes use: kubelet, proxy (kubelets through the API server), or agent, which programs inside can forge (driver kube)."`
	AnyKubelet    bool              `help:"Take any certificate of a kubelet, where kubelets sign their own (driver kube)."`
	Shared        bool              `help:"Several processes have this worker, as replicas in front of a cluster (worker role)."`
	MaxSandboxes  int               `default:"200" help:"Sandboxes at once on this host."`
	MaxPerTenant  int               `help:"Sandboxes at once of one tenant, 0 for no limit (scheduler role)."`
	Quota         map[string]uint64 `placeholder:"NAME=N" help:"Quotas of tenants that have none of their own, such as sandboxes=20 or creates_per_minute=60; may be repeated. Give gateway, lifecycle and exec the same."`
	StartDeadline time.Duration     `default:"5m" help:"How long a create may take."`
	KeepWorkspace time.Duration     `default:"24h" help:"How long the workspace of a destroyed sandbox stays."`
	OrphanGrace   time.Duration     `default:"2m" help:"How long something that runs here and that the log does not know is left alone."`
	Pool          int               `default:"4" help:"Empty workspaces of the usual size kept ready, so that a create only renames one."`
	WarmMax       int               `default:"0" help:"Sandboxes kept ready for creates, of all kinds together; 0 for none (driver gvisor)."`
	WarmMin       int               `help:"Sandboxes kept ready of each kind that was asked for lately (worker role)."`
	WarmHitRate   float64           `default:"0.9" help:"Part of creates that is to find one ready; between the minimum and the maximum their number follows it (worker role)."`
	WarmIdle      time.Duration     `default:"10m" help:"How long a kind is kept ready that nobody asks for (worker role)."`
	WarmImages    []string          `help:"Images kept ready, with the default limits, also before anybody asks (worker role)."`
}

func (f flags) config() app.Config {
	return app.Config{
		Worker: f.Worker, Region: f.Region, Provider: f.Provider, Labels: f.Label, Tenants: f.Tenant, Roles: f.Roles, StateDir: f.State, SealKeyFile: f.SealKeyFile,
		MaxSandboxes: f.MaxSandboxes, MaxPerTenant: f.MaxPerTenant, Quotas: tenant.ParseQuotas(f.Quota), StartDeadline: f.StartDeadline, KeepWorkspace: f.KeepWorkspace, OrphanGrace: f.OrphanGrace,
		DriverName: f.Driver, Shared: f.Shared,
		Warm: app.WarmConfig{Max: f.WarmMax, Min: f.WarmMin, HitRate: f.WarmHitRate, Idle: f.WarmIdle, Images: f.WarmImages},
		Kube: app.KubeConfig{
			Kubeconfig: f.Kubeconfig, File: f.ClusterFile, AgentCA: f.AgentCA, AgentCert: f.AgentCert, AgentKey: f.AgentKey,
			Usage: f.PodUsage, AnyKubelet: f.AnyKubelet,
		},
		Driver: app.DriverConfig{CacheDir: f.Cache, Runsc: f.Runsc, Toolbox: f.Toolbox, Pool: f.Pool},
	}
}

func main() {
	var f flags
	kong.Parse(&f, chassis.Options("lifecycle", "Decides about sandboxes, and makes and ends them.")...)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(chassis.Run(ctx, "lifecycle", f.Flags, f.config().Validate, func(ctx context.Context, h chassis.Host) (chassis.Service, error) {
		return app.New(ctx, f.config(), app.Deps{NC: h.NC, Log: h.Log, Registry: h.Registry, Tracer: h.Tracer, Topology: h.Topology})
	}))
}
