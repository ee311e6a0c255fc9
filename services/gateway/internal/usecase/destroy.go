package usecase

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

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
	s, _, err := u.end(ctx, p, key, id)
	if err != nil || s.State == sandbox.Destroyed {
		return s, err
	}
	return u.gone(ctx, s, u.limits.DestroyWait)
}

// Stop is Destroy for a caller who does not wait for long: what it returns may still be ending, which is decided then and goes on. Repeated
// with its key it returns the state that it returned first.
func (u *UseCases) Stop(ctx context.Context, p principal.Principal, key, id string) (sandbox.Sandbox, error) {
	s, c, err := u.end(ctx, p, key, id)
	if err != nil {
		return s, err
	}
	if s.State != sandbox.Destroyed {
		s, err = u.gone(ctx, s, min(stopWait, u.limits.DestroyWait))
		if err != nil && (!fault.Is(err, fault.ReasonTimeout) || ctx.Err() != nil || s.State != sandbox.Destroying) {
			return s, err
		}
	}
	s.State, err = u.settle(ctx, c, s.State)
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
func (u *UseCases) end(ctx context.Context, p principal.Principal, key, id string) (sandbox.Sandbox, claim, error) {
	if err := p.Need(scopes.Stop); err != nil {
		return sandbox.Sandbox{}, claim{}, err
	}
	s, err := u.locate(ctx, p, id)
	if err != nil {
		return s, claim{}, err
	}
	c, err := u.claim(ctx, s.Tenant, "DestroySandbox", key, p.Actor, &computev1.DestroySandboxRequest{SandboxId: id})
	if err != nil || s.State == sandbox.Destroyed {
		return s, c, err
	}
	inbox, err := u.inbox()
	if err != nil {
		return s, c, err
	}
	defer inbox.close()
	cmd := &commandsv1.SandboxCommand{
		CommandId: ids.New(), TenantId: s.Tenant, SandboxId: id, Actor: p.Actor, CorrelationId: telemetry.Correlation(ctx),
		Time: now(), ReplyTo: inbox.Subject,
		Command: &commandsv1.SandboxCommand_Destroy{Destroy: &commandsv1.DestroySandbox{Reason: "requested"}},
	}
	done, err := turn(ctx, u.decisions, s.Tenant)
	if err != nil {
		return s, c, err
	}
	defer done()
	if err := u.order(ctx, subject.SandboxCommand(s.Tenant, id), cmd); err != nil {
		return s, c, err
	}
	u.hints.forget(subject.Sandbox(s.Tenant, id))
	wait, cancel := context.WithTimeout(ctx, outcomeWait)
	_, err = u.outcome(wait, subject.Sandbox(s.Tenant, id), inbox.next)
	cancel()
	return s, c, err
}

// Extend lets a sandbox live until a time from now on, at least, and returns until when: never shorter than before. Repeated with its key it
// returns what it returned first.
func (u *UseCases) Extend(ctx context.Context, p principal.Principal, key, id string, more time.Duration) (time.Time, error) {
	if err := p.Need(scopes.Create); err != nil {
		return time.Time{}, err
	}
	s, err := u.locate(ctx, p, id)
	if err != nil {
		return time.Time{}, err
	}
	c, err := u.claim(ctx, s.Tenant, "ExtendSandbox", key, p.Actor, wrapperspb.String(fmt.Sprintf("%s %s", id, more)))
	if err != nil {
		return time.Time{}, err
	}
	if err := over(s); err != nil && !c.repeated {
		return time.Time{}, err
	}
	until := time.Now().Add(more).UTC().Truncate(time.Millisecond)
	if most := s.CreatedAt.Add(u.limits.MaxRuntime); until.After(most) && !c.repeated {
		return time.Time{}, fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request is not valid").WithFields(map[string]string{
			"timeout": "a sandbox of this deployment lives for at most " + u.limits.MaxRuntime.String() + ", this one until " + most.UTC().Format(time.RFC3339),
		})
	}
	if s.ExpiresAt.After(until) {
		until = s.ExpiresAt
	}
	// Settled before anything is done: a repeated request asks for the same moment.
	settled, err := u.settle(ctx, c, until.Format(time.RFC3339Nano))
	if err != nil {
		return time.Time{}, err
	}
	if until, err = time.Parse(time.RFC3339Nano, settled); err != nil {
		return time.Time{}, fault.From(err)
	}
	if !s.ExpiresAt.Before(until) {
		return until, nil // it lives so long already
	}
	return until, u.command(ctx, p, s, &commandsv1.SandboxCommand{Command: &commandsv1.SandboxCommand_Extend{Extend: &commandsv1.ExtendSandbox{ExpiresAt: timestamppb.New(until)}}})
}

// command sends a command about a sandbox and waits until it was carried out. No answer is unavailable: it may be repeated.
func (u *UseCases) command(ctx context.Context, p principal.Principal, s sandbox.Sandbox, cmd *commandsv1.SandboxCommand) error {
	inbox, err := u.inbox()
	if err != nil {
		return err
	}
	defer inbox.close()
	cmd.CommandId, cmd.TenantId, cmd.SandboxId, cmd.Actor = ids.New(), s.Tenant, s.ID, p.Actor
	cmd.CorrelationId, cmd.Time, cmd.ReplyTo = telemetry.Correlation(ctx), now(), inbox.Subject
	done, err := turn(ctx, u.decisions, s.Tenant)
	if err != nil {
		return err
	}
	defer done()
	if err := u.order(ctx, subject.SandboxCommand(s.Tenant, s.ID), cmd); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, 2*outcomeWait)
	defer cancel()
	answered, err := u.outcome(wait, subject.Sandbox(s.Tenant, s.ID), inbox.next)
	if err == nil && !answered {
		return fault.New(fault.Unavailable, fault.ReasonNoWorker, "nobody has taken the request yet; repeat it with the same idempotency key").WithRetry(time.Second)
	}
	return err
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
