package metering

import (
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// Kind of a reading.
type Kind string

// Kinds.
const (
	Ready     Kind = "ready"
	Sampled   Kind = "sampled"
	Stopped   Kind = "stopped"
	Failed    Kind = "failed"
	Destroyed Kind = "destroyed"
	// Released and Removed are of the workspace.
	Released Kind = "released"
	Removed  Kind = "deleted"
	// Ended is of an exec, completed or lost.
	Ended Kind = "ended"
)

// Reading is what one event says about usage. Of a sandbox the figures are cumulative over its life.
type Reading struct {
	Kind Kind
	// Session is the exec's own; empty where it has none.
	Session string
	// At is the event's time in Unix milliseconds, Seq its stream sequence.
	At  int64
	Seq uint64
	// Millis is the uptime of a sandbox, the wall time of an exec.
	Millis    uint64
	CPUMillis uint64
	// MemoryAvg is in bytes, over Millis.
	MemoryAvg           uint64
	DiskRead, DiskWrite uint64
	Egress, Ingress     uint64
	// OutputKept is the bytes of an exec's output that are recorded.
	OutputKept uint64
}

// Owner is what the first event of a sandbox says about all that follow.
type Owner struct {
	Session, Org string
	// CPUMillis is thousandths of a core, the others bytes.
	CPUMillis, MemoryBytes, WorkspaceBytes uint64
}

// OwnerOf reads it.
func OwnerOf(b *eventsv1.SandboxRequested) Owner {
	return Owner{
		Session: b.GetSessionId(), Org: b.GetOrgId(), CPUMillis: uint64(b.GetLimits().GetCpuMillis()),
		MemoryBytes: b.GetLimits().GetMemoryBytes(), WorkspaceBytes: b.GetWorkspace().GetSizeBytes(),
	}
}

// Longest bounds what one event can add to a time, in milliseconds: a year. More is a mistake, and every hour of it would be a row.
const Longest = 366 * 24 * 3_600_000

// Read makes the reading of an event; false where it makes none.
func Read(e envelope.Recorded, agg subject.Aggregate) (Reading, bool) {
	r := Reading{At: e.Time.UnixMilli(), Seq: e.Seq}
	switch agg.Kind {
	case subject.KindSandbox:
		return r, r.sandbox(e)
	case subject.KindExec:
		return r, r.exec(e)
	case subject.KindWorkspace:
		switch e.Body.(type) {
		case *eventsv1.WorkspaceReleased:
			r.Kind = Released
		case *eventsv1.WorkspaceDeleted:
			r.Kind = Removed
		default:
			return r, false
		}
		return r, true
	}
	return r, false
}

func (r *Reading) sandbox(e envelope.Recorded) bool {
	switch b := e.Body.(type) {
	case *eventsv1.SandboxReady:
		r.Kind = Ready
	case *eventsv1.SandboxUsageSampled:
		r.Kind, r.Millis = Sampled, b.GetUptimeMs()
		r.used(b.GetUsage())
	case *eventsv1.SandboxStopped:
		r.Kind, r.Millis = Stopped, b.GetUptimeMs()
		r.used(b.GetUsage())
	case *eventsv1.SandboxFailed:
		r.Kind, r.Millis = Failed, b.GetUptimeMs()
		r.used(b.GetUsage())
	case *eventsv1.SandboxDestroyed:
		r.Kind, r.Millis = Destroyed, b.GetUptimeMs()
		r.used(b.GetUsage())
	default:
		return false
	}
	return true
}

func (r *Reading) exec(e envelope.Recorded) bool {
	r.Kind = Ended
	switch b := e.Body.(type) {
	case *eventsv1.ExecCompleted:
		r.Session, r.Millis = b.GetSessionId(), min(b.GetWallTimeUs()/1000, Longest)
		r.OutputKept = Kept(b.GetStdout()) + Kept(b.GetStderr())
		r.used(b.GetUsage())
	case *eventsv1.ExecLost:
		r.Session, r.Millis = b.GetSessionId(), min(b.GetWallTimeUs()/1000, Longest)
		r.OutputKept = b.GetStdoutBytes() + b.GetStderrBytes()
		r.used(b.GetUsage())
	default:
		return false
	}
	return true
}

// Kept is how many bytes of an output are recorded.
func Kept(o *eventsv1.Output) uint64 { return o.GetBytes() - min(o.GetBytes(), o.GetDroppedBytes()) }

func (r *Reading) used(u *commonv1.UsageMetrics) {
	r.CPUMillis, r.MemoryAvg = u.GetCpuMs(), u.GetMemoryAvgBytes()
	r.DiskRead, r.DiskWrite, r.Egress, r.Ingress = u.GetDiskReadBytes(), u.GetDiskWriteBytes(), u.GetNetworkEgressBytes(), u.GetNetworkIngressBytes()
}
