package usecase

import (
	"context"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// Destroy ends a sandbox and returns it once it is observed gone. One that is gone already is answered again.
func (u *UseCases) Destroy(ctx context.Context, p principal.Principal, key, id string) (sandbox.Sandbox, error) {
	s, err := u.end(ctx, p, key, id)
	if err != nil || s.State == sandbox.Destroyed {
		return s, err
	}
	return u.gone(ctx, s, u.limits.DestroyWait)
}

// Stop is Destroy for a caller who does not wait for long: what it returns may still be ending, which is decided then and goes on.
func (u *UseCases) Stop(ctx context.Context, p principal.Principal, key, id string) (sandbox.Sandbox, error) {
	s, err := u.end(ctx, p, key, id)
	if err != nil || s.State == sandbox.Destroyed {
		return s, err
	}
	s, err = u.gone(ctx, s, min(stopWait, u.limits.DestroyWait))
	if fault.Is(err, fault.ReasonTimeout) && ctx.Err() == nil && s.State == sandbox.Destroying {
		return s, nil
	}
	return s, err
}

// stopWait is shorter than the 30 s that clients wait.
const stopWait = 20 * time.Second

func (u *UseCases) gone(ctx context.Context, s sandbox.Sandbox, wait time.Duration) (sandbox.Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return u.await(ctx, s, func(s sandbox.Sandbox) (bool, error) { return s.State == sandbox.Destroyed, nil })
}

// end orders the end of a sandbox that has not ended.
func (u *UseCases) end(ctx context.Context, p principal.Principal, key, id string) (sandbox.Sandbox, error) {
	if err := p.Need(scopes.Stop); err != nil {
		return sandbox.Sandbox{}, err
	}
	s, err := u.locate(ctx, p, id)
	if err != nil {
		return s, err
	}
	if _, err := u.claim(ctx, s.Tenant, "DestroySandbox", key, p.Actor, &computev1.DestroySandboxRequest{SandboxId: id}); err != nil {
		return s, err
	}
	if s.State == sandbox.Destroyed {
		return s, nil
	}
	inbox, err := u.inbox()
	if err != nil {
		return s, err
	}
	defer inbox.close()
	cmd := &commandsv1.SandboxCommand{
		CommandId: ids.New(), TenantId: s.Tenant, SandboxId: id, Actor: p.Actor, CorrelationId: telemetry.Correlation(ctx),
		Time: now(), ReplyTo: inbox.Subject,
		Command: &commandsv1.SandboxCommand_Destroy{Destroy: &commandsv1.DestroySandbox{Reason: "requested"}},
	}
	if err := u.order(ctx, subject.SandboxCommand(s.Tenant, id), cmd); err != nil {
		return s, err
	}
	u.hints.forget(subject.Sandbox(s.Tenant, id))
	wait, cancel := context.WithTimeout(ctx, outcomeWait)
	_, err = u.outcome(wait, subject.Sandbox(s.Tenant, id), inbox.next)
	cancel()
	return s, err
}

// Describe returns a sandbox as the log has it now; for a live one its usage is asked of its worker.
func (u *UseCases) Describe(ctx context.Context, p principal.Principal, id string) (sandbox.Sandbox, error) {
	if err := p.Need(scopes.Inspect); err != nil {
		return sandbox.Sandbox{}, err
	}
	s, err := u.show(ctx, p, id)
	if err != nil || s.State != sandbox.Ready {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	// A worker that does not answer costs the fresh figures, not the answer: the log's last sample stands.
	if reply, err := u.fileCall(ctx, s, &commandsv1.FileCall{Call: &commandsv1.FileCall_Stats{Stats: &commandsv1.StatsCall{}}}); err == nil && reply.GetUsage() != nil {
		s.Usage = reply.GetUsage()
	}
	return s, nil
}
