package project

import (
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/metering"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

// schemaVersion is the version of the mapping below. A change of what a column means raises it, and the log is projected again.
const schemaVersion = 2

// Owner is for whom a sandbox runs, beside its tenant, and what it was given.
type Owner = metering.Owner

// Bounds of the column occurred_at.
var (
	earliest = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	latest   = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

// costing are the events that make a row.
var costing = []proto.Message{
	&eventsv1.ExecCompleted{}, &eventsv1.ExecLost{},
	&eventsv1.SandboxReady{}, &eventsv1.SandboxUsageSampled{}, &eventsv1.SandboxStopped{}, &eventsv1.SandboxFailed{}, &eventsv1.SandboxDestroyed{},
	&eventsv1.WorkspaceReleased{}, &eventsv1.WorkspaceDeleted{},
}

// Map makes the row of an event that costs something. The same event and owner make the same row. An error is an *unusable: an id
// that is none, a tenant that is not the subject's.
//
// An exec has one row, under its usage_event_id. A sandbox has one row over its whole life, under ids.Usage of its own id: its
// facts are cumulative and the latest one stands. A fact of a sandbox has a second row besides, see MapReading; one of a workspace
// has only that.
func Map(e envelope.Recorded, agg subject.Aggregate, o Owner) (clickhouse.Row, error) {
	row := clickhouse.Row{
		Tenant: agg.Tenant, Session: o.Session, Org: o.Org, OccurredAt: e.Time.UTC(), Seq: e.Seq, Schema: schemaVersion,
	}
	if e.Tenant != "" && e.Tenant != agg.Tenant {
		return row, &unusable{"the tenant of its header is not that of its subject", nil}
	}
	if e.Time.Before(earliest) || e.Time.After(latest) {
		return row, &unusable{"its time is out of bounds", nil}
	}
	var err error
	if row.EventID, err = uuid.Parse(e.ID); err != nil {
		return row, &unusable{"its id is not a UUID", err}
	}
	if row.Sandbox, err = uuid.Parse(agg.Sandbox); err != nil {
		return row, &unusable{"its sandbox id is not a UUID", err}
	}
	switch agg.Kind {
	case subject.KindExec:
		return mapExec(row, e, agg)
	case subject.KindWorkspace:
		return MapReading(row, e, agg, o)
	}
	return mapSandbox(row, e)
}

// MapReading makes the row of a fact of a sandbox or workspace by itself, from the row that Map makes: it stands under the id of
// its event, so that what was used between two facts can be told.
func MapReading(row clickhouse.Row, e envelope.Recorded, agg subject.Aggregate, o Owner) (clickhouse.Row, error) {
	r, ok := metering.Read(e, agg)
	if !ok {
		return row, &unusable{"it stands on the subject of a workspace and is not of one", nil}
	}
	row.ID, row.Type, row.Outcome = row.EventID, clickhouse.SandboxReading, string(r.Kind)
	if agg.Kind == subject.KindWorkspace {
		row.Type = clickhouse.WorkspaceReading
	}
	row.CPULimit, row.MemoryLimit, row.Workspace = o.CPUMillis, o.MemoryBytes, o.WorkspaceBytes
	return row, nil
}

func mapExec(row clickhouse.Row, e envelope.Recorded, agg subject.Aggregate) (clickhouse.Row, error) {
	row.Type = clickhouse.ExecCommand
	var err error
	if row.Exec, err = uuid.Parse(agg.ID); err != nil {
		return row, &unusable{"its exec id is not a UUID", err}
	}
	var usageID, session string
	switch b := e.Body.(type) {
	case *eventsv1.ExecCompleted:
		code := b.GetExitCode()
		row.Outcome, row.ExitCode, row.Signal, row.Reason = "completed", &code, b.GetSignal(), b.GetReason()
		row.WallMillis, row.Method = b.GetWallTimeUs()/1000, b.GetUsageMethod()
		row.StdoutBytes, row.StderrBytes = b.GetStdout().GetBytes(), b.GetStderr().GetBytes()
		row.OutputKept = metering.Kept(b.GetStdout()) + metering.Kept(b.GetStderr())
		setUsage(&row, b.GetUsage())
		usageID, session = b.GetUsageEventId(), b.GetSessionId()
	case *eventsv1.ExecLost:
		row.Outcome, row.Reason, row.WallMillis = "lost", b.GetReason(), b.GetWallTimeUs()/1000
		row.StdoutBytes, row.StderrBytes = b.GetStdoutBytes(), b.GetStderrBytes()
		row.OutputKept = b.GetStdoutBytes() + b.GetStderrBytes()
		setUsage(&row, b.GetUsage())
		usageID, session = b.GetUsageEventId(), b.GetSessionId()
	default:
		return row, &unusable{"it stands on the subject of an exec and is not of one", nil}
	}
	if session != "" {
		row.Session = session
	}
	if usageID == "" {
		usageID = ids.Usage(e.ID)
	}
	if row.ID, err = uuid.Parse(usageID); err != nil {
		return row, &unusable{"its usage event id is not a UUID", err}
	}
	return row, nil
}

func mapSandbox(row clickhouse.Row, e envelope.Recorded) (clickhouse.Row, error) {
	row.Type = clickhouse.SandboxUptime
	row.ID = uuid.MustParse(ids.Usage(row.Sandbox.String()))
	switch b := e.Body.(type) {
	case *eventsv1.SandboxReady:
		row.Outcome = "ready"
	case *eventsv1.SandboxUsageSampled:
		row.Outcome, row.WallMillis = "ready", b.GetUptimeMs()
		setUsage(&row, b.GetUsage())
	case *eventsv1.SandboxStopped:
		row.Outcome, row.WallMillis = "stopped", b.GetUptimeMs()
		setUsage(&row, b.GetUsage())
	case *eventsv1.SandboxFailed:
		row.Outcome, row.Reason, row.WallMillis = "failed", b.GetReason(), b.GetUptimeMs()
		setUsage(&row, b.GetUsage())
	case *eventsv1.SandboxDestroyed:
		row.Outcome, row.Reason, row.WallMillis = "destroyed", b.GetReason(), b.GetUptimeMs()
		setUsage(&row, b.GetUsage())
	default:
		return row, &unusable{"it stands on the subject of a sandbox and is not of one", nil}
	}
	return row, nil
}

func setUsage(row *clickhouse.Row, u *commonv1.UsageMetrics) {
	row.CPUMillis, row.MemoryPeak, row.MemoryAvg = u.GetCpuMs(), u.GetMemoryPeakBytes(), u.GetMemoryAvgBytes()
	row.DiskRead, row.DiskWrite = u.GetDiskReadBytes(), u.GetDiskWriteBytes()
	row.Egress, row.Ingress = u.GetNetworkEgressBytes(), u.GetNetworkIngressBytes()
	row.GPUMillis, row.GPUMemory = u.GetGpuMs(), u.GetGpuMemoryBytes()
}
