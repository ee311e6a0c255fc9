package usecase

import (
	"context"
	"time"

	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// Changes are what is to be other of a sandbox; what is zero stays as it is.
type Changes struct {
	// More is how long it is to live from now on, as Extend has it.
	More time.Duration
	// Labels are all that it has then.
	Labels map[string]string
	// Egress is where its programs may connect to then.
	Egress *eventsv1.Egress
}

// Change makes changes in the order of their fields, and returns the sandbox behind them. Where one is refused those before it stand.
func (u *UseCases) Change(ctx context.Context, p principal.Principal, id string, c Changes) (sandbox.Sandbox, error) {
	if err := p.Need(scopes.Create); err != nil {
		return sandbox.Sandbox{}, err
	}
	if c.More > 0 {
		if _, err := u.Extend(ctx, p, "", id, c.More); err != nil {
			return sandbox.Sandbox{}, err
		}
	}
	if c.Labels != nil {
		if err := u.label(ctx, p, id, c.Labels); err != nil {
			return sandbox.Sandbox{}, err
		}
	}
	if c.Egress != nil {
		if err := u.egress(ctx, p, id, c.Egress); err != nil {
			return sandbox.Sandbox{}, err
		}
	}
	return u.locate(ctx, p, id)
}

// egress says where a sandbox may connect to from now on.
func (u *UseCases) egress(ctx context.Context, p principal.Principal, id string, e *eventsv1.Egress) error {
	s, err := u.locate(ctx, p, id)
	if err != nil {
		return err
	}
	if err := over(s); err != nil {
		return err
	}
	u.hints.forget(subject.Sandbox(s.Tenant, id))
	return u.command(ctx, p, s, &commandsv1.SandboxCommand{Command: &commandsv1.SandboxCommand_Egress{Egress: &commandsv1.SetEgress{Egress: e}}})
}

// label gives a sandbox labels. One that failed takes them too; one that is being destroyed does not.
func (u *UseCases) label(ctx context.Context, p principal.Principal, id string, labels map[string]string) error {
	s, err := u.locate(ctx, p, id)
	if err != nil {
		return err
	}
	if s.State != sandbox.Failed {
		if err := over(s); err != nil {
			return err
		}
	}
	u.hints.forget(subject.Sandbox(s.Tenant, id))
	return u.command(ctx, p, s, &commandsv1.SandboxCommand{Command: &commandsv1.SandboxCommand_Label{Label: &commandsv1.LabelSandbox{Labels: labels}}})
}
