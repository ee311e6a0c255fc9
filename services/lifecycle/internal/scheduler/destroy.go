package scheduler

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/history"
)

// destroy records that a sandbox ends and hands it to its worker. A worker that ends it already, or has ended it, is told again
// and finds nothing to do.
func (s *Scheduler) destroy(ctx context.Context, cmd *commandsv1.SandboxCommand, reason string) (uint64, error) {
	sb, err := history.Record(ctx, s.events, cmd.GetTenantId(), cmd.GetSandboxId(), "destroying", s.meta(cmd),
		func(sb sandbox.Sandbox) sandbox.Command {
			// Whoever asks because the time is over must be right about it at the moment of the decision.
			if reason == sandbox.ReasonExpired && !sb.Expired(s.now()) {
				return nil
			}
			return sandbox.Destroy{Reason: reason}
		})
	if err != nil || sb.State != sandbox.Destroying {
		return sb.Seq, err
	}
	return sb.Seq, s.send(ctx, sb.Worker, &commandsv1.WorkerCommand{
		CommandId: ids.Derive("teardown", cmd.GetCommandId()), TenantId: sb.Tenant, SandboxId: sb.ID, Sequence: sb.Seq,
		Actor: cmd.GetActor(), CorrelationId: cmd.GetCorrelationId(), Time: cmd.GetTime(),
		Command: &commandsv1.WorkerCommand_Teardown{Teardown: &commandsv1.Teardown{Reason: reason}},
	})
}

// extend moves the end of a sandbox's time. Whether it comes before the sandbox expires or behind is decided by the order in the log.
func (s *Scheduler) extend(ctx context.Context, cmd *commandsv1.SandboxCommand, until time.Time) (uint64, error) {
	sb, err := history.Record(ctx, s.events, cmd.GetTenantId(), cmd.GetSandboxId(), "extended", s.meta(cmd),
		func(sandbox.Sandbox) sandbox.Command { return sandbox.Extend{At: s.now(), ExpiresAt: until} })
	return sb.Seq, err
}

// label gives a sandbox other labels.
func (s *Scheduler) label(ctx context.Context, cmd *commandsv1.SandboxCommand, labels map[string]string) (uint64, error) {
	sb, err := s.once(ctx, cmd, "labelled", sandbox.Label{Labels: labels})
	return sb.Seq, err
}

// egress says where a sandbox may connect to from now on.
func (s *Scheduler) egress(ctx context.Context, cmd *commandsv1.SandboxCommand, e *eventsv1.Egress) (uint64, error) {
	sb, err := s.once(ctx, cmd, "egress", sandbox.SetEgress{Egress: e})
	return sb.Seq, err
}

// use records that a sandbox is in use, before it is. Whether that comes before its end or behind is decided by the order in the log, and told.
func (s *Scheduler) use(ctx context.Context, cmd *commandsv1.SandboxCommand) (uint64, error) {
	sb, err := history.Record(ctx, s.events, cmd.GetTenantId(), cmd.GetSandboxId(), "used", s.meta(cmd),
		func(sandbox.Sandbox) sandbox.Command { return sandbox.Use{At: s.now()} })
	if err == nil && sb.Ending() {
		err = fault.Newf(fault.FailedPrecondition, fault.ReasonSandboxDestroyed, "the sandbox was destroyed (%s)", sb.Reason)
	}
	return sb.Seq, err
}

func inject(ctx context.Context, h nats.Header) { telemetry.Inject(ctx, h) }
