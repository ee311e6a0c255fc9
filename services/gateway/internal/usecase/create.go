package usecase

import (
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/calls"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// outcomeWait is how long a command's answer is waited for before the log is asked instead.
const outcomeWait = 5 * time.Second

// Create accepts a sandbox and returns it as it was requested: it starts in the background.
func (u *UseCases) Create(ctx context.Context, p principal.Principal, key string, req *computev1.CreateSandboxRequest) (sandbox.Sandbox, error) {
	if err := p.Need(scopes.Create); err != nil {
		return sandbox.Sandbox{}, err
	}
	tenant, err := p.Owner(req.GetTenantId())
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	create, err := u.createCommand(req)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return u.ordered(ctx, p, tenant, "CreateSandbox", key, req, create, req.GetEnvVars())
}

// ordered orders a create. request is what an idempotency key is bound to.
func (u *UseCases) ordered(
	ctx context.Context, p principal.Principal, tenant, method, key string, request proto.Message, create *commandsv1.CreateSandbox, env map[string]string,
) (sandbox.Sandbox, error) {
	c, err := u.claim(ctx, tenant, method, key, p.Actor, request)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	id := c.id()
	calls.About(ctx, subject.Sandbox(tenant, id))
	if create.SealedEnv, err = u.sealEnv(id, env); err != nil {
		return sandbox.Sandbox{}, err
	}
	inbox, err := u.inbox()
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer inbox.close()
	cmd := &commandsv1.SandboxCommand{
		CommandId: ids.Derive("create", id), TenantId: tenant, SandboxId: id, Actor: p.Actor,
		CorrelationId: telemetry.Correlation(ctx), Time: now(), ReplyTo: inbox.Subject,
		Command: &commandsv1.SandboxCommand_Create{Create: create},
	}
	done, err := turn(ctx, u.decisions, tenant)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer done()
	if err := u.order(ctx, subject.SandboxCommand(tenant, id), cmd); err != nil {
		return sandbox.Sandbox{}, err
	}
	return u.created(ctx, subject.Sandbox(tenant, id), inbox.next)
}

// created waits for the outcome of a create and reads the sandbox from the log, where the answer stands even if the outcome
// was lost.
func (u *UseCases) created(ctx context.Context, agg subject.Aggregate, next nextMsg) (sandbox.Sandbox, error) {
	wait, cancel := context.WithTimeout(ctx, outcomeWait)
	defer cancel()
	if _, err := u.outcome(wait, agg, next); err != nil {
		return sandbox.Sandbox{}, err
	}
	wait, cancelLoad := context.WithTimeout(ctx, outcomeWait)
	defer cancelLoad()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := u.load(wait, agg)
		if err == nil || !fault.Is(err, fault.ReasonSandboxNotFound) {
			return s, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return s, ctx.Err()
		case <-wait.Done():
			return s, fault.New(fault.Unavailable, fault.ReasonNoWorker,
				"the create was accepted but nobody has taken it yet; repeat it with the same idempotency key, or describe "+agg.ID).
				WithRetry(5 * time.Second)
		}
	}
}

// CheckCreate says what of a request is over the bounds of this deployment, before anything is done.
func (u *UseCases) CheckCreate(req *computev1.CreateSandboxRequest) error {
	_, err := u.createCommand(req)
	return err
}

func (u *UseCases) createCommand(req *computev1.CreateSandboxRequest) (*commandsv1.CreateSandbox, error) {
	bad := map[string]string{}
	w := req.GetWorkspace()
	size := u.limits.WorkspaceBytes
	if w.GetSize() != "" {
		n, err := ParseQuantity(w.GetSize())
		switch {
		case err != nil:
			bad["workspace.size"] = err.Error()
		case n > u.limits.MaxWorkspaceBytes:
			bad["workspace.size"] = "is over the maximum of this deployment"
		case n < minWorkspaceBytes:
			bad["workspace.size"] = "must be at least 16Mi"
		default:
			size = n
		}
	}
	l := req.GetLimits()
	if l.GetCpuMillis() > u.limits.MaxCPUMillis {
		bad["limits.cpu_millis"] = "is over the maximum of this deployment"
	}
	if m := l.GetMemoryBytes(); m > u.limits.MaxMemoryBytes {
		bad["limits.memory_bytes"] = "is over the maximum of this deployment"
	} else if m != 0 && m < minMemoryBytes {
		bad["limits.memory_bytes"] = "must be at least 67108864 (64Mi)"
	}
	runtime := u.limits.Runtime
	if l.GetMaxRuntime() != nil {
		if runtime = l.GetMaxRuntime().AsDuration(); runtime > u.limits.MaxRuntime {
			bad["limits.max_runtime"] = "is over the maximum of this deployment, " + u.limits.MaxRuntime.String()
		}
	}
	if len(bad) > 0 {
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request is not valid").WithFields(bad)
	}
	return &commandsv1.CreateSandbox{
		SessionId: req.GetSessionId(), OrgId: req.GetOrgId(), Image: req.GetImage(), Labels: req.GetLabels(),
		EnvKeys: slices.Sorted(maps.Keys(req.GetEnvVars())),
		Workspace: &eventsv1.Workspace{
			SizeBytes: size, MountPath: orElse(w.GetMountPath(), "/workspace"), StorageClass: w.GetStorageClass(),
		},
		Limits: &eventsv1.Limits{
			CpuMillis: l.GetCpuMillis(), MemoryBytes: l.GetMemoryBytes(), Pids: l.GetPids(), MaxRuntimeMs: uint64(runtime.Milliseconds()),
			IdleTimeoutMs: uint64(max(l.GetIdleTimeout().AsDuration(), 0).Milliseconds()),
		},
	}, nil
}

const (
	// minWorkspaceBytes is what an ext4 needs to hold anything at all.
	minWorkspaceBytes = 16 << 20
	// minMemoryBytes is what the sentry and an interpreter need to start.
	minMemoryBytes = 64 << 20
)

// sealEnv encrypts values so that only the worker can read them, bound to the id they are for.
func (u *UseCases) sealEnv(id string, env map[string]string) ([]byte, error) {
	if len(env) == 0 {
		return nil, nil
	}
	plain, err := proto.Marshal(&commandsv1.Env{Vars: env})
	if err != nil {
		return nil, fault.From(err)
	}
	return u.sealed(id, plain)
}

func (u *UseCases) sealed(id string, plain []byte) ([]byte, error) {
	sealed, err := u.seal.Seal(plain, []byte(id))
	if err != nil {
		return nil, fault.From(err)
	}
	return sealed, nil
}
