package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/history"
)

// stop records that a sandbox's processes end and hands it to its worker. One that is stopping already is handed over again, one that is
// stopped is no error.
func (s *Scheduler) stop(ctx context.Context, cmd *commandsv1.SandboxCommand) (uint64, error) {
	sb, err := history.Current(ctx, s.events, cmd.GetTenantId(), cmd.GetSandboxId())
	if err != nil {
		return 0, err
	}
	if _, err := sandbox.Decide(sb, sandbox.Stop{}); err != nil {
		return sb.Seq, err
	}
	if sb.State == sandbox.Ready {
		if _, err := s.stops(ctx, sb); err != nil {
			return sb.Seq, err
		}
		sb, err = s.once(ctx, cmd, "stopping", sandbox.Stop{})
	}
	if err != nil || sb.State != sandbox.Stopping {
		return sb.Seq, err
	}
	return sb.Seq, s.send(ctx, sb.Worker, &commandsv1.WorkerCommand{
		CommandId: ids.Derive("halt", cmd.GetCommandId()), TenantId: sb.Tenant, SandboxId: sb.ID, Sequence: sb.Seq,
		Actor: cmd.GetActor(), CorrelationId: cmd.GetCorrelationId(), Time: cmd.GetTime(),
		Command: &commandsv1.WorkerCommand_Halt{Halt: &commandsv1.Halt{}},
	})
}

// once records what a command asks for, and gives the sandbox behind it, also where it was refused. The event's id is derived from the command:
// delivered once more behind another one that undid it, it is done already, and undoes nothing.
func (s *Scheduler) once(ctx context.Context, cmd *commandsv1.SandboxCommand, what string, c sandbox.Command) (sandbox.Sandbox, error) {
	h, err := eventlog.Execute(ctx, s.events, subject.Sandbox(cmd.GetTenantId(), cmd.GetSandboxId()), func(h eventlog.History) ([]envelope.Event, error) {
		sb, err := sandbox.Fold(h)
		if err != nil {
			return nil, err
		}
		bodies, err := sandbox.Decide(sb, c)
		return history.Events(s.meta(cmd), ids.Derive(what, cmd.GetCommandId()), cmd.GetTenantId(), bodies...), err
	})
	sb, unread := sandbox.Fold(h)
	if err == nil {
		err = unread
	}
	return sb, err
}

// stops is the worker of a sandbox, where it was heard of lately and keeps what is stopped.
func (s *Scheduler) stops(ctx context.Context, sb sandbox.Sandbox) (*commandsv1.WorkerStatus, error) {
	fresh, err := s.awaitWorkers(ctx)
	if err != nil {
		return nil, err
	}
	for _, w := range fresh {
		switch {
		case w.GetWorker() != sb.Worker:
		case !w.GetStops():
			return nil, fault.Newf(fault.FailedPrecondition, fault.ReasonNotImplemented,
				"worker %s cannot keep a sandbox that is stopped (driver %s); destroy it instead, its workspace is kept", w.GetWorker(), w.GetDriver())
		default:
			return w, nil
		}
	}
	return nil, fault.Newf(fault.Unavailable, fault.ReasonNoWorker, "worker %s, which has the sandbox's files, was not heard of lately", sb.Worker).
		WithRetry(5 * time.Second)
}

// restart accepts the start of a stopped sandbox, takes what it needs again, and hands it to the worker that has its files. One that starts
// is handed over again, one that runs is no error.
func (s *Scheduler) restart(ctx context.Context, cmd *commandsv1.SandboxCommand) (uint64, error) {
	sb, err := history.Current(ctx, s.events, cmd.GetTenantId(), cmd.GetSandboxId())
	if err != nil {
		return 0, err
	}
	if _, err := sandbox.Decide(sb, sandbox.Restart{At: s.now()}); err != nil {
		return sb.Seq, err
	}
	if sb.State == sandbox.Stopped {
		if err := s.wake(ctx, sb); err != nil {
			return sb.Seq, err
		}
		woken, err := s.once(ctx, cmd, "restarting", sandbox.Restart{At: s.meta(cmd).Time})
		if err == nil && woken.State == sandbox.Stopped || err != nil && final(err) {
			err = errors.Join(err, s.rest(ctx, sb))
		}
		if err != nil {
			return sb.Seq, err
		}
		sb = woken
	}
	if !sb.Restarting() {
		return sb.Seq, nil
	}
	return sb.Seq, s.send(ctx, sb.Worker, &commandsv1.WorkerCommand{
		CommandId: ids.Derive("restart", cmd.GetCommandId()), TenantId: sb.Tenant, SandboxId: sb.ID, Sequence: sb.Seq,
		Actor: cmd.GetActor(), CorrelationId: cmd.GetCorrelationId(), Time: cmd.GetTime(),
		Command: &commandsv1.WorkerCommand_Materialise{Materialise: &commandsv1.Materialise{}},
	})
}

// wake takes CPU, memory and a place of its worker for a stopped sandbox, or nothing.
func (s *Scheduler) wake(ctx context.Context, sb sandbox.Sandbox) error {
	w, err := s.stops(ctx, sb)
	if err != nil {
		return err
	}
	if err := s.quotas.Admit(ctx, sb.Tenant); err != nil {
		return err
	}
	quotas, err := s.quotas.Of(ctx, sb.Tenant)
	if err != nil {
		return err
	}
	if err := s.places.Quotas.Wake(ctx, sb.Tenant, sb.ID, sizeOf(sb.Limits, sb.Workspace.GetSizeBytes()), quotas); err != nil {
		return err
	}
	err = s.places.Take(ctx, OfWorker(sb.Worker), sb.Tenant, sb.ID, int(w.GetMaxSandboxes()))
	var full *FullError
	if errors.As(err, &full) {
		err = fault.Newf(fault.ResourceExhausted, fault.ReasonNoWorker, "worker %s, which has the sandbox's files, is full: %s", sb.Worker, full).
			WithRetry(5 * time.Second)
		return errors.Join(err, s.places.Quotas.Rest(ctx, sb.Tenant, sb.ID))
	}
	return err
}

// rest gives back what was taken for a start that was not accepted: its sandbox was destroyed meanwhile, or its time is over.
func (s *Scheduler) rest(ctx context.Context, was sandbox.Sandbox) error {
	sb, err := history.Current(ctx, s.events, was.Tenant, was.ID)
	switch {
	case err != nil:
		return err
	case sb.Ending():
		return s.places.Release(ctx, sb.Tenant, sb.Worker, sb.ID)
	case sb.State == sandbox.Stopped:
		return s.places.Rest(ctx, sb.Tenant, sb.Worker, sb.ID)
	}
	return nil
}
