package clickhouse

import (
	"context"
	"fmt"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/google/uuid"
)

// Event types.
const (
	ExecCommand   = "exec_command"
	SandboxUptime = "sandbox_uptime"
	// SandboxReading and WorkspaceReading are one row for each event: what the rollups are made from.
	SandboxReading   = "sandbox_reading"
	WorkspaceReading = "workspace_reading"
)

// Row is a row of agents.usage_events_raw. For the meaning of the sort key (Tenant, Sandbox, ID) see the migration.
type Row struct {
	ID uuid.UUID
	// Type is one of the event types.
	Type string
	// Outcome of an exec: completed, lost. State of a sandbox: ready, stopped, failed, destroyed. Of a reading: a metering.Kind.
	Outcome, Tenant, Session, Org string
	// Exec is zero in the row of a sandbox.
	Sandbox, Exec uuid.UUID
	OccurredAt    time.Time
	CPUMillis     uint64
	MemoryPeak    uint64
	MemoryAvg     uint64
	DiskRead      uint64
	DiskWrite     uint64
	Egress        uint64
	Ingress       uint64
	GPUMillis     uint64
	GPUMemory     uint64
	// WallMillis is the wall time of an exec, the uptime of a sandbox.
	WallMillis uint64
	// ExitCode is nil where it is not known.
	ExitCode                 *int32
	Signal                   int32
	Reason                   string
	StdoutBytes, StderrBytes uint64
	Method                   string
	EventID                  uuid.UUID
	// Seq is the stream sequence: of two rows with one key the higher one counts.
	Seq    uint64
	Schema uint16
	// CPULimit is thousandths of a core, MemoryLimit and Workspace are bytes: what the sandbox of a reading was given.
	CPULimit, MemoryLimit, Workspace uint64
	// OutputKept is how many bytes of an exec's output are recorded.
	OutputKept uint64
}

// column is one column of the table and how to make room for its values.
type column struct {
	name string
	make func() values
}

// columns are all that Insert writes, in the order of the table.
var columns = []column{
	pick("id", func(r *Row) *uuid.UUID { return &r.ID }),
	few("event_type", func(r *Row) *string { return &r.Type }),
	few("outcome", func(r *Row) *string { return &r.Outcome }),
	few("tenant_id", func(r *Row) *string { return &r.Tenant }),
	pick("session_id", func(r *Row) *string { return &r.Session }),
	few("org_id", func(r *Row) *string { return &r.Org }),
	pick("sandbox_id", func(r *Row) *uuid.UUID { return &r.Sandbox }),
	pick("exec_id", func(r *Row) *uuid.UUID { return &r.Exec }),
	pick("occurred_at", func(r *Row) *time.Time { return &r.OccurredAt }),
	pick("cpu_ms", func(r *Row) *uint64 { return &r.CPUMillis }),
	pick("memory_peak_bytes", func(r *Row) *uint64 { return &r.MemoryPeak }),
	pick("memory_avg_bytes", func(r *Row) *uint64 { return &r.MemoryAvg }),
	pick("disk_read_bytes", func(r *Row) *uint64 { return &r.DiskRead }),
	pick("disk_write_bytes", func(r *Row) *uint64 { return &r.DiskWrite }),
	pick("network_egress_bytes", func(r *Row) *uint64 { return &r.Egress }),
	pick("network_ingress_bytes", func(r *Row) *uint64 { return &r.Ingress }),
	pick("gpu_ms", func(r *Row) *uint64 { return &r.GPUMillis }),
	pick("gpu_memory_bytes", func(r *Row) *uint64 { return &r.GPUMemory }),
	pick("wall_time_ms", func(r *Row) *uint64 { return &r.WallMillis }),
	pick("exit_code", func(r *Row) **int32 { return &r.ExitCode }),
	pick("signal", func(r *Row) *int32 { return &r.Signal }),
	few("reason", func(r *Row) *string { return &r.Reason }),
	pick("stdout_bytes", func(r *Row) *uint64 { return &r.StdoutBytes }),
	pick("stderr_bytes", func(r *Row) *uint64 { return &r.StderrBytes }),
	few("usage_method", func(r *Row) *string { return &r.Method }),
	pick("event_id", func(r *Row) *uuid.UUID { return &r.EventID }),
	pick("stream_seq", func(r *Row) *uint64 { return &r.Seq }),
	pick("schema_version", func(r *Row) *uint16 { return &r.Schema }),
	pick("cpu_limit_millis", func(r *Row) *uint64 { return &r.CPULimit }),
	pick("memory_limit_bytes", func(r *Row) *uint64 { return &r.MemoryLimit }),
	pick("workspace_bytes", func(r *Row) *uint64 { return &r.Workspace }),
	pick("output_kept_bytes", func(r *Row) *uint64 { return &r.OutputKept }),
}

var insertStatement = func() string {
	s := "INSERT INTO agents.usage_events_raw ("
	for i, c := range columns {
		if i > 0 {
			s += ", "
		}
		s += c.name
	}
	return s + ")"
}()

// Insert writes the rows as one block. What was written before is written again, and replaced by the table's key. The server must not
// take it for the repetition of a block that it has: its log of those names a block before the block is on disk, and a server that was
// killed in between drops rows that it never had. So each call has a token of its own.
func (c *Conn) Insert(ctx context.Context, rows *Block) error {
	if rows.Len() == 0 {
		return nil
	}
	ctx = ch.Context(ctx, ch.WithSettings(ch.Settings{"insert_deduplication_token": uuid.NewString()}))
	b, err := c.conn.PrepareBatch(ctx, c.named(insertStatement))
	if err != nil {
		return fmt.Errorf("begin insert: %w", err)
	}
	defer func() { _ = b.Close() }()
	for i, v := range rows.columns {
		if err := b.Column(i).Append(v.all()); err != nil {
			return fmt.Errorf("column %s: %w", columns[i].name, err)
		}
	}
	if err := b.Send(); err != nil {
		return fmt.Errorf("insert %d rows: %w", rows.Len(), err)
	}
	return nil
}

// Clear removes every row, and what was made from rows.
func (c *Conn) Clear(ctx context.Context) error {
	if err := c.forget(ctx); err != nil {
		return err
	}
	if err := c.exec(ctx, "TRUNCATE TABLE agents.usage_events_raw"); err != nil {
		return fmt.Errorf("remove all rows: %w", err)
	}
	return nil
}
