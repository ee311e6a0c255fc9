package sandbox

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/envelope"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// step is one event type: the states in which it is possible, and the state behind it ("" keeps the state).
type step struct {
	name string
	from []string
	to   string
}

var (
	stepRequested  = step{"requested", []string{""}, Requested}
	stepScheduled  = step{"scheduled", []string{Requested, Scheduled}, Scheduled}
	stepStarting   = step{"starting", []string{Requested, Scheduled, Starting, Stopped}, Starting}
	stepReady      = step{"ready", []string{Starting}, Ready}
	stepFailed     = step{"failed", []string{Requested, Scheduled, Starting, Ready, Stopping, Stopped}, Failed}
	stepStopping   = step{"stopping", []string{Ready}, Stopping}
	stepStopped    = step{"stopped", []string{Starting, Stopping}, Stopped}
	stepDestroying = step{
		"destroying",
		[]string{Requested, Scheduled, Starting, Ready, Failed, Stopping, Stopped},
		Destroying,
	}
	stepDestroyed = step{"destroyed", []string{Destroying}, Destroyed}
	stepExtended  = step{"extended", []string{Requested, Scheduled, Starting, Ready, Stopping, Stopped}, ""}
	stepUsed      = step{"used", []string{Requested, Scheduled, Starting, Ready, Stopping, Stopped}, ""}
	stepLabelled  = step{"labelled", []string{Requested, Scheduled, Starting, Ready, Failed, Stopping, Stopped}, ""}
	stepSampled   = step{"usage sampled", []string{Ready, Stopping}, ""}

	stepEgress = step{"egress", []string{Requested, Scheduled, Starting, Ready, Stopping, Stopped}, ""}

	stepSnapshotting   = step{"snapshotting", []string{Ready}, ""}
	stepSnapshotted    = step{"snapshotted", []string{Starting, Ready, Stopping, Stopped}, ""}
	stepSnapshotFailed = step{"snapshot failed", []string{Starting, Ready, Stopping, Stopped}, ""}
)

func (t step) possible(state string) bool { return slices.Contains(t.from, state) }

func stepOf(body any) (step, bool) {
	switch body.(type) {
	case *eventsv1.SandboxRequested:
		return stepRequested, true
	case *eventsv1.SandboxScheduled:
		return stepScheduled, true
	case *eventsv1.SandboxStarting:
		return stepStarting, true
	case *eventsv1.SandboxReady:
		return stepReady, true
	case *eventsv1.SandboxFailed:
		return stepFailed, true
	case *eventsv1.SandboxStopping:
		return stepStopping, true
	case *eventsv1.SandboxStopped:
		return stepStopped, true
	case *eventsv1.SandboxDestroying:
		return stepDestroying, true
	case *eventsv1.SandboxDestroyed:
		return stepDestroyed, true
	case *eventsv1.SandboxUsageSampled:
		return stepSampled, true
	case *eventsv1.SandboxExtended:
		return stepExtended, true
	case *eventsv1.SandboxUsed:
		return stepUsed, true
	case *eventsv1.SandboxLabelled:
		return stepLabelled, true
	case *eventsv1.SandboxEgressSet:
		return stepEgress, true
	case *eventsv1.SandboxSnapshotting:
		return stepSnapshotting, true
	case *eventsv1.SandboxSnapshotted:
		return stepSnapshotted, true
	case *eventsv1.SandboxSnapshotFailed:
		return stepSnapshotFailed, true
	}
	return step{}, false
}

// Evolve is the state behind e. It refuses an event that is impossible in this state with fault reason illegal_state, and
// one that it does not know with unknown_event; s is returned unchanged then.
func (s Sandbox) Evolve(e envelope.Recorded) (Sandbox, error) {
	t, known := stepOf(e.Body)
	if !known {
		return s, unknownEvent(e)
	}
	if !t.possible(s.State) {
		return s, illegal(s.State, "event "+t.name)
	}
	next := s
	next.apply(e)
	if t.to != "" {
		next.State = t.to
	}
	next.Seq, next.Digest = e.Seq, e.Digest
	next.Events++
	return next, nil
}

func (s *Sandbox) apply(e envelope.Recorded) {
	switch b := e.Body.(type) {
	case *eventsv1.SandboxRequested:
		s.request(e, b)
	case *eventsv1.SandboxScheduled:
		s.Worker = b.GetPlacement().GetWorker()
	case *eventsv1.SandboxStarting:
		if s.State != Starting || s.Attempt != b.GetAttempt() || s.Worker != b.GetWorker() {
			s.StartingAt = e.Time
		}
		if s.State == Stopped {
			s.OrderedAt = e.Time
		}
		s.Worker, s.Attempt, s.Endpoint = b.GetWorker(), b.GetAttempt(), nil
		s.Reason, s.Message = b.GetReason(), b.GetMessage()
	case *eventsv1.SandboxReady:
		s.Worker, s.RuntimeID = b.GetWorker(), b.GetRuntimeId()
		s.Hostname, s.ImageDigest, s.Endpoint = b.GetHostname(), b.GetImageDigest(), b.GetEndpoint()
		s.RunningSince, s.ReadySeq, s.Reason, s.Message = e.Time, e.Seq, "", ""
		if s.ReadyAt.IsZero() {
			s.ReadyAt = e.Time
		}
	case *eventsv1.SandboxFailed:
		s.Reason, s.Message = b.GetReason(), b.GetMessage()
		s.Usage, s.Uptime = mergeUsage(s.Usage, b.GetUsage()), millis(b.GetUptimeMs())
		s.EndedAt, s.RunningSince = e.Time, time.Time{}
	case *eventsv1.SandboxStopped:
		s.Usage, s.Uptime = mergeUsage(s.Usage, b.GetUsage()), millis(b.GetUptimeMs())
		s.PastUsage, s.PastUptime = s.Usage, s.Uptime
		s.RunningSince, s.Endpoint = time.Time{}, nil
		s.Reason, s.Message = b.GetReason(), b.GetMessage()
	case *eventsv1.SandboxExtended:
		s.ExpiresAt = timeOf(b.GetExpiresAt())
	case *eventsv1.SandboxUsed:
		if until := timeOf(b.GetUntil()); until.After(s.UsedUntil) {
			s.UsedUntil = until
		}
	case *eventsv1.SandboxLabelled:
		s.Labels = b.GetLabels()
		s.Relabelled++
	case *eventsv1.SandboxEgressSet:
		s.Egress = b.GetEgress()
		s.EgressSets++
	case *eventsv1.SandboxSnapshotting, *eventsv1.SandboxSnapshotted, *eventsv1.SandboxSnapshotFailed:
		s.Snapshot = s.Snapshot.behind(e)
	case *eventsv1.SandboxUsageSampled:
		s.Usage, s.Uptime = mergeUsage(s.Usage, b.GetUsage()), millis(b.GetUptimeMs())
	case *eventsv1.SandboxDestroying:
		s.DestroyingAt = e.Time
		if s.State != Failed {
			s.Reason, s.Message = b.GetReason(), ""
		}
	case *eventsv1.SandboxDestroyed:
		s.Usage, s.Uptime = mergeUsage(s.Usage, b.GetUsage()), millis(b.GetUptimeMs())
		s.DeleteAfter, s.RunningSince, s.Endpoint = timeOf(b.GetWorkspaceDeleteAfter()), time.Time{}, nil
		if s.EndedAt.IsZero() {
			s.EndedAt = e.Time
		}
	}
}

func (s *Sandbox) request(e envelope.Recorded, b *eventsv1.SandboxRequested) {
	if e.Tenant != "" {
		s.Tenant = e.Tenant
	}
	s.ID, s.SessionID, s.OrgID = b.GetSandboxId(), b.GetSessionId(), b.GetOrgId()
	s.Image, s.EnvKeys, s.Labels, s.Name = b.GetImage(), b.GetEnvKeys(), b.GetLabels(), b.GetName()
	s.Egress = b.GetEgress()
	s.Limits, s.Workspace, s.Requested = b.GetLimits(), b.GetWorkspace(), b
	s.Worker = b.GetPlacement().GetWorker()
	s.CommandID, s.CreatedAt, s.OrderedAt = e.Cause, e.Time, e.Time
	s.ExpiresAt = timeOf(b.GetExpiresAt())
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// millis is a duration from an event. A value over what a duration holds is cut there.
func millis(ms uint64) time.Duration {
	const most = uint64(1<<63-1) / uint64(time.Millisecond)
	return time.Duration(min(ms, most)) * time.Millisecond //nolint:gosec // bounded above
}

func inMillis(d time.Duration) uint64 {
	return uint64(max(d, 0) / time.Millisecond) //nolint:gosec // not negative
}
