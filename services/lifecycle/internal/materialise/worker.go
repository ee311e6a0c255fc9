// Package materialise is the role of lifecycle that makes and ends sandboxes on one worker through its runtime driver.
//
// Each step is recorded before or behind the work it stands for such that a process killed between any two lines is finished
// by the repeated command or by the reconciler: starting before the driver begins, ready behind an answering sandbox, failed
// before its remains are removed, destroyed behind an observed end.
package materialise

import (
	"context"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/worker"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/history"
)

// Config of a worker.
type Config struct {
	// Name of the worker, as in the placement.
	Name string
	// StartDeadline is how long a create may take, from its request on.
	StartDeadline time.Duration
	// KeepWorkspace is how long the workspace of a destroyed sandbox stays.
	KeepWorkspace time.Duration
	// EndTimeout bounds one attempt to end a sandbox.
	EndTimeout time.Duration
}

// Opener opens what the gateway sealed; *seal.Key is one.
type Opener interface {
	Open(sealed, associated []byte) ([]byte, error)
}

// Releaser gives back the places of a sandbox of which nothing runs any more.
type Releaser interface {
	Release(ctx context.Context, tenant, worker, id string) error
	// Rest gives back what a sandbox does not take up while it is stopped: all but its disk.
	Rest(ctx context.Context, tenant, worker, id string) error
}

// Role handles the commands on cmd.worker.<name>.>.
type Role struct {
	cfg    Config
	log    *slog.Logger
	nc     *nats.Conn
	events eventlog.Log
	driver runtime.Driver
	seal   Opener
	places Releaser
	busy   *Busy
	now    func() time.Time
}

// New makes a worker. Commands and the reconciler share busy.
func New(
	cfg Config, nc *nats.Conn, events eventlog.Log, driver runtime.Driver, seal Opener, places Releaser, busy *Busy,
	log *slog.Logger, now func() time.Time,
) *Role {
	return &Role{cfg: cfg, log: log, nc: nc, events: events, driver: driver, seal: seal, places: places, busy: busy, now: now}
}

// Handle carries out one command. Commands of one sandbox come one after another.
func (r *Role) Handle(ctx context.Context, m worker.Message) error {
	cmd := &commandsv1.WorkerCommand{}
	if err := proto.Unmarshal(m.Data, cmd); err != nil {
		return worker.Poison(dlq.Undecodable("a WorkerCommand", err))
	}
	if m.Subject != subject.WorkerCommand(r.cfg.Name, cmd.GetTenantId(), cmd.GetSandboxId()) || !ids.Valid(cmd.GetSandboxId()) {
		return worker.Poison(dlq.Misaddressed())
	}
	free, ok := r.busy.Take(cmd.GetSandboxId(), ctx.Done())
	if !ok {
		return ctx.Err()
	}
	defer free()
	s, err := history.UpTo(ctx, r.events, cmd.GetTenantId(), cmd.GetSandboxId(), cmd.GetSequence())
	if err != nil {
		return err
	}
	if s.Exists() && s.Worker != r.cfg.Name {
		r.log.Warn("a command for a sandbox of another worker was ignored", "sandbox", s.ID, "worker", s.Worker)
		return nil
	}
	switch c := cmd.GetCommand().(type) {
	case *commandsv1.WorkerCommand_Materialise:
		return r.materialise(ctx, s, r.meta(cmd), c.Materialise.GetSealedEnv(), m.Attempt)
	case *commandsv1.WorkerCommand_Halt:
		return r.Halt(ctx, s, r.meta(cmd))
	case *commandsv1.WorkerCommand_TakeSnapshot:
		return r.snapshot(ctx, s, r.meta(cmd), m.Attempt)
	case *commandsv1.WorkerCommand_Teardown:
		return r.teardown(ctx, s, r.meta(cmd))
	case *commandsv1.WorkerCommand_DeleteWorkspace:
		return r.deleteWorkspace(ctx, s, r.meta(cmd))
	}
	return worker.Poison(dlq.UnknownKind())
}

func (r *Role) meta(cmd *commandsv1.WorkerCommand) history.Meta {
	actor := cmd.GetActor()
	if actor == "" {
		actor = history.Actor
	}
	return history.Meta{Actor: actor, Cause: cmd.GetCommandId(), Correlation: cmd.GetCorrelationId()}
}

// record is history.Record at the present time.
func (r *Role) record(
	ctx context.Context, s sandbox.Sandbox, what string, m history.Meta, choose func(sandbox.Sandbox, time.Time) sandbox.Command,
) (sandbox.Sandbox, error) {
	m.Time = r.now()
	return history.Record(ctx, r.events, s.Tenant, s.ID, what, m, func(s sandbox.Sandbox) sandbox.Command {
		return choose(s, m.Time)
	})
}

// Metrics turns what a driver measured into what events hold. An unmeasured usage is nil.
func Metrics(u runtime.Usage) *commonv1.UsageMetrics {
	m := &commonv1.UsageMetrics{
		CpuMs: u.CPUMillis, MemoryPeakBytes: u.MemoryPeakBytes, MemoryAvgBytes: u.MemoryAvgBytes,
		DiskReadBytes: u.DiskReadBytes, DiskWriteBytes: u.DiskWriteBytes,
		NetworkIngressBytes: u.NetworkIngressBytes, NetworkEgressBytes: u.NetworkEgressBytes,
	}
	if proto.Size(m) == 0 {
		return nil
	}
	return m
}
