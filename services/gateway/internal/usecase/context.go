package usecase

import (
	"context"
	"errors"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/calls"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// StartAs starts a command as the exec of an id that the caller has derived, unless there is one of that id already, and returns once it was
// accepted. Of several who start one at once, with commands that differ, one wins and nobody is told which: its receipt says. The request must
// be detached.
func (u *UseCases) StartAs(ctx context.Context, p principal.Principal, id string, req *computev1.ExecCommandRequest) error {
	if err := p.Need(scopes.Execute); err != nil {
		return err
	}
	s, err := u.locateForExec(ctx, p, req.GetSandboxId())
	if err != nil {
		return err
	}
	spec, err := u.execSpec(s, req)
	if err != nil {
		return err
	}
	agg := subject.Exec(s.Tenant, s.ID, id)
	calls.About(ctx, agg)
	h, err := u.history(ctx, agg)
	if err != nil || len(h.Events) > 0 {
		return err
	}
	if err := errors.Join(over(s), resting(s)); err != nil {
		return err
	}
	accepted, err := u.start(ctx, p, s, agg, spec, req)
	if err != nil {
		return err
	}
	select {
	case err = <-accepted:
	case <-ctx.Done():
		return fault.New(fault.Cancelled, fault.ReasonCancelled, "the caller went away").Because(ctx.Err())
	}
	var never *refused
	if errors.As(err, &never) {
		return never.error
	}
	return err
}

// Awake is nil for a sandbox in which something can run, and otherwise the refusal that a command in it gets.
func (u *UseCases) Awake(ctx context.Context, p principal.Principal, sandboxID string) error {
	if err := p.Need(scopes.Execute); err != nil {
		return err
	}
	s, err := u.locate(ctx, p, sandboxID)
	if err != nil {
		return err
	}
	return errors.Join(over(s), resting(s))
}
