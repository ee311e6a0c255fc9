// Package scheduler is the role of lifecycle that decides: whether a sandbox may exist, on which worker, and when it ends.
package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/quota"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/worker"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/history"
)

// Config of the scheduler.
type Config struct {
	// Quotas of tenants that have none of their own. Beyond one a create is refused with fault.ResourceExhausted.
	Quotas tenant.Quotas
	// StartDeadline is how long a create may take, from its request on.
	StartDeadline time.Duration
	// WorkerWait is how long a create waits for the first heartbeat of any worker before it is refused.
	WorkerWait time.Duration
	Limits     Limits
}

// Scheduler handles the commands on cmd.sandbox.>.
type Scheduler struct {
	cfg     Config
	log     *slog.Logger
	nc      *nats.Conn
	js      jetstream.JetStream
	events  eventlog.Log
	places  *Places
	quotas  *quota.Book
	workers *Workers
	refused jetstream.KeyValue
	now     func() time.Time
}

// New makes a scheduler. now is the clock of every decision.
func New(
	ctx context.Context, cfg Config, nc *nats.Conn, js jetstream.JetStream, events eventlog.Log, places *Places, workers *Workers,
	log *slog.Logger, now func() time.Time,
) (*Scheduler, error) {
	refused, err := js.KeyValue(ctx, topology.BucketIdem)
	if err != nil {
		return nil, fmt.Errorf("open the bucket of idempotency keys: %w", err)
	}
	return &Scheduler{
		cfg: cfg, log: log, nc: nc, js: js, events: events, places: places, quotas: quota.NewBook(events, cfg.Quotas), workers: workers,
		refused: refused, now: now,
	}, nil
}

// Handle carries out one command and answers it. What is answered stands in the log before; a refusal of a create stands in
// the bucket idem, so that a repeated delivery gives the same answer.
func (s *Scheduler) Handle(ctx context.Context, m worker.Message) error {
	cmd := &commandsv1.SandboxCommand{}
	if err := proto.Unmarshal(m.Data, cmd); err != nil {
		return worker.Poison(dlq.Undecodable("a SandboxCommand", err))
	}
	if m.Subject != subject.SandboxCommand(cmd.GetTenantId(), cmd.GetSandboxId()) || !ids.Valid(cmd.GetSandboxId()) || cmd.GetCommandId() == "" {
		return worker.Poison(dlq.Misaddressed())
	}
	var seq uint64
	var err error
	switch c := cmd.GetCommand().(type) {
	case *commandsv1.SandboxCommand_Create:
		seq, err = s.create(ctx, cmd, c.Create, m.Attempt)
	case *commandsv1.SandboxCommand_Destroy:
		seq, err = s.destroy(ctx, cmd, c.Destroy.GetReason())
	case *commandsv1.SandboxCommand_Extend:
		seq, err = s.extend(ctx, cmd, c.Extend.GetExpiresAt().AsTime())
	case *commandsv1.SandboxCommand_Stop:
		seq, err = s.stop(ctx, cmd)
	case *commandsv1.SandboxCommand_Start:
		seq, err = s.restart(ctx, cmd)
	case *commandsv1.SandboxCommand_Snapshot:
		seq, err = s.snapshot(ctx, cmd, c.Snapshot.GetImage())
	case *commandsv1.SandboxCommand_Use:
		seq, err = s.use(ctx, cmd)
	case *commandsv1.SandboxCommand_Label:
		seq, err = s.label(ctx, cmd, c.Label.GetLabels())
	case *commandsv1.SandboxCommand_Egress:
		seq, err = s.egress(ctx, cmd, c.Egress.GetEgress())
	default:
		return worker.Poison(dlq.UnknownKind())
	}
	if err != nil && !final(err) {
		return err
	}
	s.answer(cmd, seq, err)
	if err != nil {
		s.log.Info("command refused", "tenant", cmd.GetTenantId(), "sandbox", cmd.GetSandboxId(), "correlation", cmd.GetCorrelationId(),
			"reason", fault.From(err).Reason)
	}
	return nil
}

// final reports whether a failure is the command's answer. All others are tried again: nothing is known to be decided.
func final(err error) bool {
	f := fault.From(err)
	switch f.Code {
	case fault.InvalidArgument, fault.NotFound, fault.FailedPrecondition, fault.ResourceExhausted, fault.PermissionDenied:
		return true
	case fault.Conflict:
		return f.RetryAfter == 0
	case fault.Unavailable:
		return f.Reason == fault.ReasonNoWorker
	}
	return false
}

// answer publishes the outcome. It is lost when nobody waits or the connection breaks; then the asker reads the log.
func (s *Scheduler) answer(cmd *commandsv1.SandboxCommand, seq uint64, err error) {
	if cmd.GetReplyTo() == "" {
		return
	}
	out := &commandsv1.Outcome{CommandId: cmd.GetCommandId(), Sequence: seq}
	if err != nil {
		detail, code := fault.Detail(err)
		detail.CorrelationId = cmd.GetCorrelationId()
		out.Error, out.GrpcCode = detail, uint32(code)
	}
	data, err := proto.Marshal(out)
	if err == nil {
		err = s.nc.Publish(cmd.GetReplyTo(), data)
	}
	if err != nil {
		s.log.Warn("the outcome of a command could not be sent", "sandbox", cmd.GetSandboxId(), "error", err)
	}
}

func (s *Scheduler) meta(cmd *commandsv1.SandboxCommand) history.Meta {
	actor := cmd.GetActor()
	if actor == "" {
		actor = history.Actor
	}
	return history.Meta{Actor: actor, Cause: cmd.GetCommandId(), Correlation: cmd.GetCorrelationId(), Time: s.now()}
}

// send publishes a command to the worker. Its message id is the command's, so that a repetition within the stream's window
// is dropped; later ones do no harm, because workers decide on the log.
func (s *Scheduler) send(ctx context.Context, to string, cmd *commandsv1.WorkerCommand) error {
	return Send(ctx, s.js, to, cmd)
}

// Send publishes a command to a worker.
func Send(ctx context.Context, js jetstream.JetStream, to string, cmd *commandsv1.WorkerCommand) error {
	data, err := proto.Marshal(cmd)
	if err != nil {
		return fmt.Errorf("encode the worker's command: %w", err)
	}
	m := nats.NewMsg(subject.WorkerCommand(to, cmd.GetTenantId(), cmd.GetSandboxId()))
	m.Data = data
	inject(ctx, m.Header)
	if _, err := js.PublishMsg(ctx, m, jetstream.WithMsgID(cmd.GetCommandId())); err != nil {
		return fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "the worker cannot be reached now").
			Because(fmt.Errorf("publish to worker %s: %w", to, err)).WithRetry(time.Second)
	}
	return nil
}
