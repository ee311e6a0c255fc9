package scheduler

import (
	"context"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/history"
)

// snapshot records that an image of a sandbox's root is asked for, and hands that to its worker. Repeated while it is made it is handed over again.
func (s *Scheduler) snapshot(ctx context.Context, cmd *commandsv1.SandboxCommand, image string) (uint64, error) {
	sb, err := history.Current(ctx, s.events, cmd.GetTenantId(), cmd.GetSandboxId())
	if err != nil {
		return 0, err
	}
	take := sandbox.TakeSnapshot{CommandID: cmd.GetCommandId(), Image: image}
	if _, err := sandbox.Decide(sb, take); err != nil {
		return sb.Seq, err
	}
	if sb.Snapshot.CommandID != take.CommandID {
		if err := s.snapshots(ctx, sb); err != nil {
			return sb.Seq, err
		}
		now, err := s.once(ctx, cmd, "snapshotting", take)
		if err != nil {
			return sb.Seq, err
		}
		sb = now
	}
	if !sb.Snapshot.Pending() || sb.Ending() {
		return sb.Seq, nil
	}
	return sb.Snapshot.Seq, s.send(ctx, sb.Worker, &commandsv1.WorkerCommand{
		CommandId: ids.Derive("snapshot", cmd.GetCommandId()), TenantId: sb.Tenant, SandboxId: sb.ID, Sequence: sb.Seq,
		Actor: cmd.GetActor(), CorrelationId: cmd.GetCorrelationId(), Time: cmd.GetTime(),
		Command: &commandsv1.WorkerCommand_TakeSnapshot{TakeSnapshot: &commandsv1.TakeSnapshot{}},
	})
}

// snapshots refuses where the worker of a sandbox makes none, or was not heard of lately.
func (s *Scheduler) snapshots(ctx context.Context, sb sandbox.Sandbox) error {
	fresh, err := s.awaitWorkers(ctx)
	if err != nil {
		return err
	}
	for _, w := range fresh {
		switch {
		case w.GetWorker() != sb.Worker:
		case !w.GetSnapshots():
			return fault.Newf(fault.FailedPrecondition, fault.ReasonNotImplemented, "worker %s makes no snapshots (driver %s)", w.GetWorker(), w.GetDriver())
		default:
			return nil
		}
	}
	return fault.Newf(fault.Unavailable, fault.ReasonNoWorker, "worker %s, which has the sandbox, was not heard of lately", sb.Worker).WithRetry(5 * time.Second)
}
