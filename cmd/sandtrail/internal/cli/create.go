package cli

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/client"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/fault"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// Create is `sandtrail create`.
type Create struct {
	Server
	Name           string        `arg:"" optional:"" help:"A name that no other sandbox of the tenant has: the sandbox is then made over HTTP, and the commands below Named sandboxes take its name."`
	Image          string        `default:"ghcr.io/paper-board/sandbox-python:v0.1.0" placeholder:"REF" help:"Image to run. Default: ${default}."`
	Session        string        `placeholder:"ID" help:"The agent session it belongs to."`
	Env            []string      `short:"e" sep:"none" placeholder:"K=V" help:"Environment variable of every exec; K alone takes its value from here, which keeps it out of process lists."`
	Label          []string      `short:"l" sep:"none" placeholder:"K=V" help:"Label, recorded in clear."`
	CPU            string        `name:"cpu" aliases:"cpus" placeholder:"CORES" help:"Cores: 1.5 or 500m."`
	Memory         string        `placeholder:"SIZE" help:"Memory: 512Mi, 2Gi; with a name a number alone is MiB."`
	Pids           uint32        `placeholder:"N" help:"Processes and threads at once."`
	Workspace      string        `placeholder:"SIZE" help:"Size of the workspace: 5Gi."`
	MountPath      string        `placeholder:"PATH" help:"Where the workspace is inside the sandbox."`
	MaxRuntime     time.Duration `placeholder:"DURATION" help:"How long it may live."`
	IdleTimeout    time.Duration `placeholder:"DURATION" help:"End it once no command runs, none was started and no file call came for so long, or up to half of that or a 500th of its age longer."`
	IdempotencyKey string        `placeholder:"KEY" help:"The same key with the same flags gives the same sandbox for 24 hours. Default: a random one."`
	Wait           bool          `help:"Wait until it is ready."`
	Timeout        time.Duration `default:"5m" help:"Give up after this long; the sandbox stays."`

	APIURL       string   `name:"api-url" placeholder:"URL" group:"With a name" help:"URL of the server; see list."`
	Region       string   `default:"local" placeholder:"NAME" group:"With a name" help:"Region of its worker; local is any."`
	Provider     string   `default:"local" aliases:"provider-type" placeholder:"NAME" group:"With a name" help:"Provider of its worker; local is any."`
	WorkerLabel  []string `placeholder:"NAME=VALUE" sep:"none" group:"With a name" help:"What the labels of its worker must say; may be repeated."`
	InstanceType string   `placeholder:"NAME" group:"With a name" help:"Recorded, and of no meaning here."`
	TTL          uint32   `name:"ttl" placeholder:"SECONDS" group:"With a name" help:"How long it may live, from now on."`
	Egress       []string `sep:"none" placeholder:"RULE" group:"With a name" help:"Where its programs may connect to: NAME, *.NAME or ADDRESS/BITS, with :PORT,PORT where it is not 80 and 443. May be repeated; without any: nowhere."`
	NoWait       bool     `group:"With a name" help:"Print the job and do not wait until it is up."`
}

// defaultImage is that of a create that names none.
const defaultImage = "ghcr.io/paper-board/sandbox-python:v0.1.0"

const (
	// defaultTenant is taken where neither a key nor --tenant says whose it is.
	defaultTenant = "default"
	firstPoll     = 20 * time.Millisecond
	maxPoll       = time.Second
)

func (c *Create) request() (*computev1.CreateSandboxRequest, error) {
	env, err := environment(c.Env)
	if err != nil {
		return nil, err
	}
	labels, err := labels(c.Label)
	if err != nil {
		return nil, err
	}
	req := &computev1.CreateSandboxRequest{
		TenantId: c.Tenant, SessionId: c.Session, Image: c.Image, EnvVars: env, Labels: labels,
		Limits: &computev1.ResourceLimits{Pids: c.Pids},
	}
	if c.Workspace != "" || c.MountPath != "" {
		req.Workspace = &computev1.WorkspaceSpec{Size: c.Workspace, MountPath: c.MountPath}
	}
	if c.MaxRuntime != 0 {
		req.Limits.MaxRuntime = durationpb.New(c.MaxRuntime)
	}
	if c.IdleTimeout != 0 {
		req.Limits.IdleTimeout = durationpb.New(c.IdleTimeout)
	}
	if c.CPU != "" {
		if req.Limits.CpuMillis, err = cpu(c.CPU); err != nil {
			return nil, err
		}
	}
	if c.Memory != "" {
		if req.Limits.MemoryBytes, err = memory(c.Memory); err != nil {
			return nil, err
		}
	}
	if key, err := c.key(); err == nil && key == "" && req.GetTenantId() == "" {
		req.TenantId = defaultTenant
	}
	return req, nil
}

// Run creates a sandbox. Its id is printed as soon as it is known, so that it is there even if the wait fails.
func (c *Create) Run(e *Env) error {
	if c.Name != "" {
		return c.createNamed(e)
	}
	req, err := c.request()
	if err != nil {
		return err
	}
	if len(c.Egress) > 0 {
		return usagef("--egress is for sandboxes with a name")
	}
	ctx, api, done, err := c.connect(e, c.Timeout)
	if err != nil {
		return err
	}
	defer done()
	keyed := client.WithKey(ctx, idempotencyKey(c.IdempotencyKey))
	res, err := client.Retry(keyed, api, func(ctx context.Context) (*computev1.CreateSandboxResponse, error) {
		return api.CreateSandbox(ctx, req)
	})
	if err != nil {
		return ended(ctx, err)
	}
	if !c.json() {
		if _, err := fmt.Fprintln(e.Stdout, res.GetSandboxId()); err != nil {
			return err
		}
	}
	if !c.Wait {
		if c.json() {
			return render.One(e.Stdout, res)
		}
		return nil
	}
	b, err := awaitReady(ctx, api, res.GetSandboxId())
	if c.json() {
		if b == nil {
			b = &computev1.DescribeSandboxResponse{SandboxId: res.GetSandboxId(), Status: res.GetStatus(), CreatedAt: res.GetCreatedAt()}
		}
		if err := render.One(e.Stdout, b); err != nil {
			return err
		}
	}
	return err
}

// awaitReady asks until the sandbox is ready or never will be. It returns the last answer, also beside an error.
func awaitReady(ctx context.Context, api *client.Client, id string) (*computev1.DescribeSandboxResponse, error) {
	var last *computev1.DescribeSandboxResponse
	for pause := firstPoll; ; pause = min(2*pause, maxPoll) {
		b, err := client.Retry(ctx, api, func(ctx context.Context) (*computev1.DescribeSandboxResponse, error) {
			return api.DescribeSandbox(ctx, &computev1.DescribeSandboxRequest{SandboxId: id})
		})
		if err != nil {
			return last, ended(ctx, err)
		}
		last = b
		switch b.GetStatus() {
		case computev1.SandboxStatus_SANDBOX_STATUS_READY:
			return b, nil
		case computev1.SandboxStatus_SANDBOX_STATUS_STARTING:
		default:
			reason := fault.Reason(b.GetDetail().GetReasonCode())
			if reason == "" {
				reason = fault.ReasonSandboxFailed
			}
			return b, fault.Newf(fault.FailedPrecondition, reason, "sandbox %s is %s: %s", id, b.GetDetail().GetState(), b.GetDetail().GetReason())
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return last, context.Cause(ctx)
		}
	}
}
