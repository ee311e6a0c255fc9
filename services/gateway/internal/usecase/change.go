package usecase

import (
	"context"
	"time"

	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// Change lets a sandbox live for more from now on, as Extend does, and gives it other labels, which are all that it has then. 0 and nil leave it
// as it is. It returns the sandbox behind both. Where the second is refused the first stands.
func (u *UseCases) Change(ctx context.Context, p principal.Principal, id string, more time.Duration, labels map[string]string) (sandbox.Sandbox, error) {
	if err := p.Need(scopes.Create); err != nil {
		return sandbox.Sandbox{}, err
	}
	if more > 0 {
		if _, err := u.Extend(ctx, p, "", id, more); err != nil {
			return sandbox.Sandbox{}, err
		}
	}
	if labels != nil {
		if err := u.label(ctx, p, id, labels); err != nil {
			return sandbox.Sandbox{}, err
		}
	}
	return u.locate(ctx, p, id)
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
