package sandbox

import (
	"maps"

	"google.golang.org/protobuf/proto"

	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// Status maps a state to the published contract, which has no word for every state:
//
//	requested, scheduled, starting, stopping, stopped   STARTING: no exec works now, one will once it is up
//	ready                                               READY
//	failed                                              FAILED
//	destroyed                                           DESTROYED
//	destroying                                          UNSPECIFIED: it may still run, so it is not said to be gone
//
// SandboxDetail.state holds the state itself.
func Status(state string) computev1.SandboxStatus {
	switch state {
	case Requested, Scheduled, Starting, Stopping, Stopped:
		return computev1.SandboxStatus_SANDBOX_STATUS_STARTING
	case Ready:
		return computev1.SandboxStatus_SANDBOX_STATUS_READY
	case Failed:
		return computev1.SandboxStatus_SANDBOX_STATUS_FAILED
	case Destroyed:
		return computev1.SandboxStatus_SANDBOX_STATUS_DESTROYED
	}
	return computev1.SandboxStatus_SANDBOX_STATUS_UNSPECIFIED
}

// Status of the sandbox, see Status.
func (s Sandbox) Status() computev1.SandboxStatus { return Status(s.State) }

// View is the sandbox as it stands in KV bucket sandbox.
func (s Sandbox) View() *commandsv1.SandboxView {
	return &commandsv1.SandboxView{
		TenantId:             s.Tenant,
		SandboxId:            s.ID,
		State:                s.State,
		Requested:            s.wanted(),
		Reason:               s.Reason,
		Message:              s.Message,
		Worker:               s.Worker,
		Hostname:             s.Hostname,
		ImageDigest:          s.ImageDigest,
		CreatedAt:            stamp(s.CreatedAt),
		ReadyAt:              stamp(s.ReadyAt),
		EndedAt:              stamp(s.EndedAt),
		WorkspaceDeleteAfter: stamp(s.DeleteAfter),
		Usage:                clone(s.Usage),
		UptimeMs:             inMillis(s.Uptime),
		Sequence:             s.Seq,
		RunningSince:         stamp(s.RunningSince),
		PastUptimeMs:         inMillis(s.PastUptime),
		Endpoint:             s.Endpoint,
		ExpiresAt:            stamp(s.ExpiresAt),
		OrderedAt:            stamp(s.OrderedAt),
		UsedUntil:            stamp(s.UsedUntil),
	}
}

// wanted is what was requested with the labels and the egress of now: who looks for them in a view need not know that they can change.
func (s Sandbox) wanted() *eventsv1.SandboxRequested {
	if s.Requested == nil || maps.Equal(s.Labels, s.Requested.GetLabels()) && s.Egress == s.Requested.GetEgress() {
		return s.Requested
	}
	r := proto.CloneOf(s.Requested)
	r.Labels, r.Egress = s.Labels, s.Egress
	return r
}

// FromView is the inverse of View for what a view holds. It is for showing, not for deciding: a view may be behind the log.
func FromView(v *commandsv1.SandboxView) Sandbox {
	r, expires, ordered := v.GetRequested(), v.GetExpiresAt(), v.GetOrderedAt()
	if expires == nil {
		expires = r.GetExpiresAt() // written before there were extensions
	}
	if ordered == nil {
		ordered = v.GetCreatedAt() // written before stopped sandboxes could be started
	}
	return Sandbox{
		ID: v.GetSandboxId(), Tenant: v.GetTenantId(), State: v.GetState(),
		SessionID: r.GetSessionId(), OrgID: r.GetOrgId(), Image: r.GetImage(), Name: r.GetName(),
		EnvKeys: r.GetEnvKeys(), Labels: r.GetLabels(), Egress: r.GetEgress(), Limits: r.GetLimits(), Workspace: r.GetWorkspace(), Requested: r,
		Worker: v.GetWorker(), Hostname: v.GetHostname(), ImageDigest: v.GetImageDigest(),
		Reason: v.GetReason(), Message: v.GetMessage(),
		CreatedAt: timeOf(v.GetCreatedAt()), OrderedAt: timeOf(ordered), ReadyAt: timeOf(v.GetReadyAt()), EndedAt: timeOf(v.GetEndedAt()),
		ExpiresAt: timeOf(expires), UsedUntil: timeOf(v.GetUsedUntil()), DeleteAfter: timeOf(v.GetWorkspaceDeleteAfter()),
		Usage: clone(v.GetUsage()), Uptime: millis(v.GetUptimeMs()), Seq: v.GetSequence(),
		RunningSince: timeOf(v.GetRunningSince()), PastUptime: millis(v.GetPastUptimeMs()),
		Endpoint: v.GetEndpoint(),
	}
}

// View is the exec's receipt as it stands in KV bucket exec.
func (x Exec) View() *commandsv1.ExecView {
	return &commandsv1.ExecView{
		TenantId:      x.Tenant,
		SandboxId:     x.Sandbox,
		ExecId:        x.ID,
		State:         x.State,
		Spec:          x.Spec,
		Completed:     x.Completed,
		Lost:          x.Lost,
		RequestedAt:   stamp(x.RequestedAt),
		StartedAt:     stamp(x.StartedAt),
		EndedAt:       stamp(x.EndedAt),
		FirstSequence: x.FirstSeq,
		LastSequence:  x.LastSeq,
		Digest:        x.Digest,
		Worker:        x.Worker,
	}
}

// ExecFromView is the inverse of View. Like FromView it is for showing, not for deciding.
func ExecFromView(v *commandsv1.ExecView) Exec {
	x := Exec{
		ID: v.GetExecId(), Sandbox: v.GetSandboxId(), Tenant: v.GetTenantId(), State: v.GetState(),
		Spec: v.GetSpec(), Completed: v.GetCompleted(), Lost: v.GetLost(), Worker: v.GetWorker(),
		RequestedAt: timeOf(v.GetRequestedAt()), StartedAt: timeOf(v.GetStartedAt()), EndedAt: timeOf(v.GetEndedAt()),
		FirstSeq: v.GetFirstSequence(), LastSeq: v.GetLastSequence(), Digest: v.GetDigest(),
	}
	x.UsageEventID = x.Completed.GetUsageEventId()
	if x.UsageEventID == "" {
		x.UsageEventID = x.Lost.GetUsageEventId()
	}
	return x
}
