package usecase

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// Snapshot has an image made of a sandbox's root and waits for it, at most for wait: what it returns then has a snapshot that is pending, and goes
// on. Of a snapshot that failed it returns why. Repeated with its key it orders nothing again, and waits for the last one.
func (u *UseCases) Snapshot(ctx context.Context, p principal.Principal, key, id, image string, wait time.Duration) (sandbox.Sandbox, error) {
	if err := p.Need(scopes.Create); err != nil {
		return sandbox.Sandbox{}, err
	}
	s, err := u.locate(ctx, p, id)
	if err != nil {
		return s, err
	}
	c, err := u.claim(ctx, s.Tenant, "SnapshotSandbox", key, p.Actor, structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{
		structpb.NewStringValue(id), structpb.NewStringValue(image),
	}}))
	if err != nil {
		return s, err
	}
	done, err := u.settle(ctx, c, "")
	if err != nil {
		return s, err
	}
	asked := ""
	if done == "" {
		if err := over(s); err != nil {
			return s, err
		}
		u.hints.forget(subject.Sandbox(s.Tenant, id))
		cmd := &commandsv1.SandboxCommand{Command: &commandsv1.SandboxCommand_Snapshot{Snapshot: &commandsv1.SnapshotSandbox{Image: image}}}
		if err := u.command(ctx, p, s, cmd); err != nil {
			return s, err
		}
		if _, err := u.settle(ctx, c, ordered); err != nil {
			return s, err
		}
		asked = cmd.GetCommandId()
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	s, err = u.await(ctx, s, func(s sandbox.Sandbox) (bool, error) {
		if s.Snapshot.Pending() || asked != "" && s.Snapshot.CommandID != asked {
			return false, over(s)
		}
		return true, nil
	})
	switch {
	case fault.Is(err, fault.ReasonTimeout) && s.Snapshot.Pending() && (asked == "" || s.Snapshot.CommandID == asked):
		return s, nil
	case err != nil:
		return s, err
	case s.Snapshot.Reason != "":
		return s, fault.Newf(fault.FailedPrecondition, fault.Reason(s.Snapshot.Reason), "the snapshot was not made: %s", orElse(s.Snapshot.Message, s.Snapshot.Reason))
	}
	return s, nil
}
