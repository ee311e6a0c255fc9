package scheduler

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/quota"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/history"
)

// create decides a create, records it and hands it to its worker. It returns the sequence of the aggregate's last event.
func (s *Scheduler) create(ctx context.Context, cmd *commandsv1.SandboxCommand, c *commandsv1.CreateSandbox, attempt int) (uint64, error) {
	sb, err := history.Load(ctx, s.events, cmd.GetTenantId(), cmd.GetSandboxId())
	if err != nil {
		return 0, err
	}
	if !sb.Exists() {
		if attempt > 1 {
			if err := s.earlier(ctx, cmd); err != nil {
				return 0, err
			}
		}
		if sb, err = s.accept(ctx, cmd, c, attempt); err != nil {
			if !final(err) {
				return 0, err
			}
			if sb, err = s.refuse(ctx, cmd, err); err != nil {
				return 0, err
			}
		}
	}
	if sb.CommandID != cmd.GetCommandId() {
		return sb.Seq, fault.Newf(fault.Conflict, fault.ReasonConflict, "sandbox %s exists already", sb.ID)
	}
	if sb.State != sandbox.Requested && sb.State != sandbox.Scheduled {
		return sb.Seq, nil
	}
	return sb.Seq, s.send(ctx, sb.Worker, &commandsv1.WorkerCommand{
		CommandId: ids.Derive("materialise", cmd.GetCommandId()), TenantId: sb.Tenant, SandboxId: sb.ID, Sequence: sb.Seq,
		Actor: cmd.GetActor(), CorrelationId: cmd.GetCorrelationId(), Time: cmd.GetTime(),
		Command: &commandsv1.WorkerCommand_Materialise{Materialise: &commandsv1.Materialise{SealedEnv: c.GetSealedEnv()}},
	})
}

// accept takes the places, records the request and gives the places back when it is refused.
func (s *Scheduler) accept(
	ctx context.Context, cmd *commandsv1.SandboxCommand, c *commandsv1.CreateSandbox, attempt int,
) (sandbox.Sandbox, error) {
	limits, workspace, err := s.cfg.Limits.apply(c)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	if c.GetName() != "" {
		// Before any place is taken, so that a name that is taken is not told as a quota.
		if _, err := s.reserve(ctx, cmd, c.GetName()); err != nil {
			return sandbox.Sandbox{}, err
		}
	}
	if err := s.quotas.Admit(ctx, cmd.GetTenantId()); err != nil {
		return sandbox.Sandbox{}, err
	}
	placement, err := s.place(ctx, cmd.GetTenantId(), cmd.GetSandboxId(), limits, workspace.GetSizeBytes(), wishOf(c))
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	meta := s.meta(cmd)
	create := sandbox.Create{
		CommandID: cmd.GetCommandId(), At: meta.Time, SandboxID: cmd.GetSandboxId(),
		SessionID: c.GetSessionId(), OrgID: c.GetOrgId(), Image: c.GetImage(), Workspace: workspace, Limits: limits,
		EnvKeys: c.GetEnvKeys(), Labels: c.GetLabels(), Placement: placement,
		Name: c.GetName(), Region: c.GetAskedRegion(), Provider: c.GetProvider(), InstanceType: c.GetInstanceType(), Egress: c.GetEgress(),
	}
	h, err := s.record(ctx, cmd, create.Name, func(h eventlog.History) ([]envelope.Event, error) {
		sb, err := sandbox.Fold(h)
		if err != nil {
			return nil, err
		}
		bodies, err := sandbox.Decide(sb, create)
		if err != nil {
			return nil, err
		}
		if attempt > 1 && !sb.Exists() {
			// A wait for workers or places is long enough for a delivery that was thought dead to refuse.
			if err := s.earlier(ctx, cmd); err != nil {
				return nil, err
			}
		}
		return history.Events(meta, cmd.GetCommandId(), cmd.GetTenantId(), bodies...), nil
	})
	if err != nil {
		// Only a definite refusal frees the places: where the log did not answer, the request may be recorded.
		if final(err) {
			if freed := s.places.Undo(ctx, cmd.GetTenantId(), placement.GetWorker(), cmd.GetSandboxId()); freed != nil {
				s.log.Warn("places of a refused sandbox stay taken until the next sweep", "sandbox", cmd.GetSandboxId(), "error", freed)
			}
		}
		return sandbox.Sandbox{}, err
	}
	sb, err := sandbox.Fold(h)
	if err == nil && sb.State == sandbox.Destroyed {
		// Another delivery made it, and its places were given back before this one took them.
		return sb, s.places.Release(ctx, sb.Tenant, placement.GetWorker(), sb.ID)
	}
	return sb, err
}

// record appends what decide makes of the sandbox's history, and with the first of it the reservation of its name.
func (s *Scheduler) record(
	ctx context.Context, cmd *commandsv1.SandboxCommand, name string, decide func(eventlog.History) ([]envelope.Event, error),
) (eventlog.History, error) {
	agg := subject.Sandbox(cmd.GetTenantId(), cmd.GetSandboxId())
	if name == "" {
		return eventlog.Execute(ctx, s.events, agg, decide)
	}
	return s.named(ctx, cmd, name, agg, decide)
}

// sizeOf is what a sandbox takes of its tenant's quotas.
func sizeOf(l *eventsv1.Limits, workspace uint64) quota.Size {
	return quota.Size{CPUMillis: uint64(l.GetCpuMillis()), MemoryBytes: l.GetMemoryBytes(), WorkspaceBytes: workspace}
}

// awaitWorkers returns those that were heard of lately. That there is none is a refusal for good, so it is said only after
// WorkerWait in which no heartbeat can have been missed: after an outage the workers come back a little later than the log.
func (s *Scheduler) awaitWorkers(ctx context.Context) ([]*commandsv1.WorkerStatus, error) {
	deadline := time.NewTimer(s.cfg.WorkerWait)
	defer deadline.Stop()
	for {
		fresh, changed := s.workers.Fresh()
		if len(fresh) > 0 {
			return fresh, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-deadline.C:
			heard := s.workers.Listening()
			if heard == 0 {
				return nil, fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "the workers cannot be heard now").WithRetry(time.Second)
			}
			if heard < s.cfg.WorkerWait {
				deadline.Reset(s.cfg.WorkerWait - heard)
				continue
			}
			return nil, fault.New(fault.Unavailable, fault.ReasonNoWorker, "no worker is running").WithRetry(5 * time.Second)
		}
	}
}

// refusalSlots is how many refusals of one tenant are remembered: who has one refused after the other takes no room from others.
const refusalSlots = 1024

// refusalKey is the slot of a command among its tenant's refusals. A later one of another command in it takes its place: by then all
// deliveries of the first are over, unless its tenant had that many refused in the meantime.
func refusalKey(cmd *commandsv1.SandboxCommand) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(cmd.GetCommandId())) // it never fails
	return fmt.Sprintf("%s.refused.%d", cmd.GetTenantId(), h.Sum32()%refusalSlots)
}

// refuse remembers a refusal before it is answered. Without that, a delivery repeated behind a lost acknowledgement might
// make the sandbox that its asker was told does not exist. It gives the refusal, or the sandbox where another delivery of this
// command made it in the meantime.
func (s *Scheduler) refuse(ctx context.Context, cmd *commandsv1.SandboxCommand, refusal error) (sandbox.Sandbox, error) {
	detail, _ := fault.Detail(refusal)
	data, err := proto.Marshal(&commandsv1.Outcome{CommandId: cmd.GetCommandId(), Error: detail})
	if err != nil {
		return sandbox.Sandbox{}, fmt.Errorf("encode the refusal: %w", err)
	}
	if _, err := s.refused.Put(ctx, refusalKey(cmd), data); err != nil {
		return sandbox.Sandbox{}, unavailable(fmt.Errorf("remember the refusal: %w", err))
	}
	sb, err := history.Current(ctx, s.events, cmd.GetTenantId(), cmd.GetSandboxId())
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	if sb.CommandID == cmd.GetCommandId() {
		return sb, nil
	}
	return sandbox.Sandbox{}, refusal
}

// earlier is the refusal that an earlier delivery of this command was answered with; nil without one.
func (s *Scheduler) earlier(ctx context.Context, cmd *commandsv1.SandboxCommand) error {
	// Of the leader of the bucket: a replica may not show yet what was answered a moment ago.
	m, err := directget.LeaderLast(ctx, s.js, subject.BucketStream(topology.BucketIdem), subject.BucketKey(topology.BucketIdem, refusalKey(cmd)))
	if err != nil {
		return unavailable(fmt.Errorf("read earlier refusals: %w", err))
	}
	if m == nil {
		return nil
	}
	out := &commandsv1.Outcome{}
	if err := proto.Unmarshal(m.Data, out); err != nil {
		return fmt.Errorf("read an earlier refusal: %w", err)
	}
	if out.GetCommandId() != cmd.GetCommandId() {
		return nil
	}
	return fault.FromDetail(out.GetError())
}
