package usecase

import (
	"context"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// Halt ends a sandbox's processes and keeps its files. It waits until nothing runs any more, at most for wait: what it returns then is
// still stopping, and goes on. One that is stopped already is returned as it is. Repeated with its key it orders nothing again.
func (u *UseCases) Halt(ctx context.Context, p principal.Principal, key, id string, wait time.Duration) (sandbox.Sandbox, error) {
	s, err := u.turn(ctx, p, "StopSandbox", key, id, &commandsv1.SandboxCommand{Command: &commandsv1.SandboxCommand_Stop{Stop: &commandsv1.StopSandbox{}}})
	if err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	s, err = u.await(ctx, s, func(s sandbox.Sandbox) (bool, error) { return s.State != sandbox.Stopping, over(s) })
	if fault.Is(err, fault.ReasonTimeout) && s.State == sandbox.Stopping {
		return s, nil
	}
	return s, err
}

// Start brings a stopped sandbox back and waits until an exec works in it. One that runs is returned as it is. A start that comes to nothing
// is an error, and leaves the sandbox stopped. Repeated with its key it orders nothing again.
func (u *UseCases) Start(ctx context.Context, p principal.Principal, key, id string, wait time.Duration) (sandbox.Sandbox, error) {
	s, err := u.turn(ctx, p, "StartSandbox", key, id, &commandsv1.SandboxCommand{Command: &commandsv1.SandboxCommand_Start{Start: &commandsv1.StartSandbox{}}})
	if err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, min(wait, u.limits.StartWait))
	defer cancel()
	return u.await(ctx, s, func(s sandbox.Sandbox) (bool, error) {
		if s.State == sandbox.Stopped {
			if s.Reason == "" {
				return true, fault.New(fault.FailedPrecondition, fault.ReasonSandboxStopped, "the sandbox was stopped again")
			}
			return true, fault.Newf(fault.FailedPrecondition, fault.ReasonSandboxStopped, "the sandbox could not be started and is stopped as before: %s", orElse(s.Message, s.Reason))
		}
		return s.State == sandbox.Ready, over(s)
	})
}

// turn orders a stop or a start once for each key, and returns the sandbox as it is behind the order.
func (u *UseCases) turn(ctx context.Context, p principal.Principal, method, key, id string, cmd *commandsv1.SandboxCommand) (sandbox.Sandbox, error) {
	if err := p.Need(scopes.Stop); err != nil {
		return sandbox.Sandbox{}, err
	}
	s, err := u.locate(ctx, p, id)
	if err != nil {
		return s, err
	}
	c, err := u.claim(ctx, s.Tenant, method, key, p.Actor, &computev1.StopSandboxRequest{SandboxId: id})
	if err != nil {
		return s, err
	}
	done, err := u.settle(ctx, c, "")
	if err != nil || done != "" {
		return s, err
	}
	if err := over(s); err != nil {
		return s, err
	}
	u.hints.forget(subject.Sandbox(s.Tenant, id))
	if err := u.command(ctx, p, s, cmd); err != nil {
		return s, err
	}
	if _, err := u.settle(ctx, c, ordered); err != nil {
		return s, err
	}
	return u.load(ctx, subject.Sandbox(s.Tenant, id))
}

// ordered is the answer that a key has once its order was carried out.
const ordered = "ordered"
