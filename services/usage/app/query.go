package app

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/semaphore"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

// Filter chooses rows of execs; Row is one. See List.
type (
	Filter = clickhouse.Filter
	Row    = clickhouse.Row
)

// List reads rows of the server at an address, newest first, and the cursor of the next page.
func List(ctx context.Context, address string, f Filter) ([]Row, string, error) {
	conn, err := clickhouse.Open(address)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = conn.Close() }()
	return conn.List(ctx, f)
}

const (
	// queryTime bounds one query, queriesAtOnce how many run together, queriesWaiting how many wait for them; one more is
	// refused with ResourceExhausted.
	queryTime      = 20 * time.Second
	queriesAtOnce  = 2
	queriesWaiting = 64
)

// answer answers UsageQuery requests until ctx ends. Several usage services share them.
func (a *App) answer(ctx context.Context) error {
	running, room := semaphore.NewWeighted(queriesAtOnce), semaphore.NewWeighted(queriesAtOnce+queriesWaiting)
	sub, err := a.nc.QueueSubscribe(subject.Usage(), "usage", func(m *nats.Msg) {
		if !room.TryAcquire(1) {
			a.reply(m, refusal(fault.New(fault.ResourceExhausted, fault.ReasonQuota, "too many usage queries at once; try again").
				WithRetry(time.Second)))
			return
		}
		go func() {
			defer room.Release(1)
			ctx, cancel := context.WithTimeout(ctx, queryTime)
			defer cancel()
			if err := running.Acquire(ctx, 1); err != nil {
				a.reply(m, refusal(fault.New(fault.Unavailable, fault.ReasonTimeout, "the usage service is busy; try again").WithRetry(time.Second)))
				return
			}
			defer running.Release(1)
			a.reply(m, a.query(ctx, m.Data))
		}()
	})
	if err != nil {
		return fmt.Errorf("subscribe to usage queries: %w", err)
	}
	<-ctx.Done()
	// The connection may be gone already, and the subscription with it.
	_ = sub.Unsubscribe()
	return nil
}

func (a *App) query(ctx context.Context, data []byte) *commandsv1.UsageReply {
	q := &commandsv1.UsageQuery{}
	if err := proto.Unmarshal(data, q); err != nil {
		return refusal(fault.New(fault.InvalidArgument, fault.ReasonValidation, "the usage query cannot be read").Because(err))
	}
	rows, next, err := a.conn.List(ctx, Filter{
		Tenant: q.GetTenantId(), Session: q.GetSessionId(), Sandbox: q.GetSandboxId(), Exec: q.GetExecId(),
		Limit: int(min(q.GetLimit(), clickhouse.MaxPage+1)), Cursor: q.GetCursor(),
	})
	if err != nil {
		a.log.WarnContext(ctx, "usage query failed", "error", err)
		return refusal(err)
	}
	reply := &commandsv1.UsageReply{NextCursor: next}
	for i := range rows {
		reply.Rows = append(reply.Rows, message(&rows[i]))
	}
	return reply
}

func refusal(err error) *commandsv1.UsageReply {
	detail, code := fault.Detail(err)
	return &commandsv1.UsageReply{Error: detail, GrpcCode: uint32(code)}
}

func (a *App) reply(m *nats.Msg, r *commandsv1.UsageReply) {
	data, err := proto.Marshal(r)
	if err == nil {
		err = m.Respond(data)
	}
	if err != nil {
		a.log.Warn("cannot answer a usage query", "error", err)
	}
}

func message(r *Row) *computev1.UsageRow {
	return &computev1.UsageRow{
		Id: r.ID.String(), EventType: r.Type, TenantId: r.Tenant, SessionId: r.Session,
		SandboxId: r.Sandbox.String(), ExecId: r.Exec.String(), OccurredAt: timestamppb.New(r.OccurredAt),
		Usage: &commonv1.UsageMetrics{
			CpuMs: r.CPUMillis, MemoryPeakBytes: r.MemoryPeak, MemoryAvgBytes: r.MemoryAvg, DiskReadBytes: r.DiskRead,
			DiskWriteBytes: r.DiskWrite, NetworkEgressBytes: r.Egress, NetworkIngressBytes: r.Ingress,
			GpuMs: r.GPUMillis, GpuMemoryBytes: r.GPUMemory,
		},
		WallTimeMs: r.WallMillis, ExitCode: r.ExitCode, Reason: r.Reason, StreamSequence: r.Seq,
	}
}
