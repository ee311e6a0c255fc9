package sandbox

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// Command is one of the structs below. At is when it is decided.
type Command interface {
	decide(s Sandbox) ([]proto.Message, error)
}

// Create asks for a sandbox that does not exist yet. Repeated with the same CommandID it decides nothing; with another one it
// is refused with fault.Conflict.
type Create struct {
	CommandID string
	At        time.Time
	SandboxID string
	SessionID string
	OrgID     string
	Image     string
	Workspace *eventsv1.Workspace
	// Limits.MaxRuntimeMs sets when it expires; 0 is never.
	Limits    *eventsv1.Limits
	EnvKeys   []string
	Labels    map[string]string
	Placement *eventsv1.Placement
	// Name must be reserved by the same append; Region, Provider and InstanceType are recorded as they were asked for.
	Name                           string
	Region, Provider, InstanceType string
	// Egress is where its programs may connect to; nil: nowhere.
	Egress *eventsv1.Egress
}

// Reschedule places it on another worker before its start has begun there. The worker it has already decides nothing.
type Reschedule struct {
	Placement *eventsv1.Placement
}

// Start begins to materialise it. Only the worker it is placed on may. Attempt counts from 1; an attempt that has begun
// already decides nothing, and so does any start of a sandbox that is ready. One that is stopped is brought back by Restart alone.
type Start struct {
	Worker  string
	Attempt uint32
}

// Restart accepts the start of a stopped sandbox, on the worker that has its files. One that starts or runs already decides nothing.
// Refused with sandbox_expired once its time is over at At.
type Restart struct {
	At time.Time
}

// GiveUp says that the start of a stopped sandbox came to nothing and left it stopped, as it was. It decides nothing unless such a start
// is under way.
type GiveUp struct {
	Reason  fault.Reason
	Message string
}

// MarkWaiting says what keeps a start under way from being done: nothing wrong where Reason is empty. It decides nothing unless it
// is starting on that worker, and nothing where the same was said last.
type MarkWaiting struct {
	Worker  string
	Reason  fault.Reason
	Message string
}

// MarkReady says that an exec works. Refused with illegal_state unless it is starting; on a ready sandbox it decides nothing.
type MarkReady struct {
	Worker      string
	RuntimeID   string
	Hostname    string
	ImageDigest string
	Warm        bool
	Phases      []*eventsv1.Phase
	// Endpoint is nil where a keeper answers.
	Endpoint *eventsv1.Endpoint
}

// Fail says that it did not become ready or ended by itself. On a sandbox that is over or being destroyed it decides nothing.
type Fail struct {
	At      time.Time
	Reason  fault.Reason
	Message string
	Phase   string
	// Usage of the present run; nil where it cannot be measured any more.
	Usage *commonv1.UsageMetrics
}

// Stop begins to end its processes and keeps what is on its disks. One that is stopping or stopped decides nothing; any but a ready one
// is refused with illegal_state.
type Stop struct{}

// MarkStopped says that nothing of it runs any more.
type MarkStopped struct {
	At    time.Time
	Usage *commonv1.UsageMetrics
}

// Destroy decides its end. Reason: requested, expired, idle, failed, orphaned. On one whose end is decided it decides nothing.
type Destroy struct {
	Reason string
}

// Extend moves the end of its time to ExpiresAt. One that ends later already, or never, decides nothing: nobody's time is made shorter. Refused
// once its end is decided or reached, and once its time is over at At.
type Extend struct {
	At, ExpiresAt time.Time
}

// MaxEvents bounds what a sandbox's owner may add to its history: behind it no Extend and no Restart is accepted, so that there is room for its end.
// The log reads no history of more than 100,000.
const MaxEvents = 50_000

// MaxRelabels bounds how often the labels of a sandbox change: whoever decides about it reads them all.
const MaxRelabels = 1000

// Label gives it other labels, which are all that it has then. The same ones decide nothing. Refused once its end is decided; one that failed may
// still be told from others. Refused with fault.ResourceExhausted behind MaxRelabels.
type Label struct {
	Labels map[string]string
}

// Use says that it is in use at At. It is recorded ahead, for twice as long as UseHolds, so that further use decides nothing while that holds for
// UseHolds at least. So does any of one that has no idle timeout, or is ending.
type Use struct {
	At time.Time
}

// Used says that its last use was at At, exactly: only what is later than what is known is recorded.
type Used struct {
	At time.Time
}

// MarkDestroyed says that nothing of it runs, as observed. Refused with illegal_state unless its end was decided before.
type MarkDestroyed struct {
	At time.Time
	// Usage of the present run as last measured; less than what was sampled before takes nothing away.
	Usage *commonv1.UsageMetrics
	// DeleteAfter is the time before which the workspace stays.
	DeleteAfter time.Time
}

// SampleUsage records what the present run has used so far. It decides nothing unless it is ready.
type SampleUsage struct {
	At    time.Time
	Usage *commonv1.UsageMetrics
}

// Decide gives the bodies of the events that c leads to in state s: none where c is carried out already, a fault where it is
// refused. It is total and deterministic, and Evolve accepts what it returns.
func Decide(s Sandbox, c Command) ([]proto.Message, error) {
	if c == nil {
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "there is no command")
	}
	return c.decide(s)
}

func one(m proto.Message) ([]proto.Message, error) { return []proto.Message{m}, nil }

func (c Create) decide(s Sandbox) ([]proto.Message, error) {
	if s.Exists() {
		if c.CommandID != "" && c.CommandID == s.CommandID {
			return nil, nil
		}
		return nil, fault.Newf(fault.Conflict, fault.ReasonConflict, "sandbox %s exists already", s.ID)
	}
	fields := map[string]string{}
	for name, v := range map[string]string{
		"command_id": c.CommandID, "sandbox_id": c.SandboxID, "image": c.Image, "placement.worker": c.Placement.GetWorker(),
	} {
		if v == "" {
			fields[name] = "must be set"
		}
	}
	if c.At.IsZero() {
		fields["time"] = "must be set"
	}
	if len(fields) > 0 {
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "the sandbox is not fully described").WithFields(fields)
	}
	var expires time.Time
	if ms := c.Limits.GetMaxRuntimeMs(); ms > 0 {
		expires = c.At.Add(millis(ms))
	}
	keys := slices.Clone(c.EnvKeys)
	slices.Sort(keys)
	return one(&eventsv1.SandboxRequested{
		SandboxId: c.SandboxID,
		SessionId: c.SessionID,
		OrgId:     c.OrgID,
		Image:     c.Image,
		Workspace: c.Workspace,
		Limits:    c.Limits,
		EnvKeys:   slices.Compact(keys),
		Labels:    maps.Clone(c.Labels),
		Placement: c.Placement,
		ExpiresAt: stamp(expires),
		Name:      c.Name, Region: c.Region, Provider: c.Provider, InstanceType: c.InstanceType, Egress: c.Egress,
	})
}

func (c Reschedule) decide(s Sandbox) ([]proto.Message, error) {
	switch {
	case !s.Exists():
		return nil, notFound(s.ID)
	case c.Placement.GetWorker() == "":
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "a placement needs a worker")
	case !stepScheduled.possible(s.State):
		return nil, illegal(s.State, "placing it on another worker")
	case c.Placement.GetWorker() == s.Worker:
		return nil, nil
	}
	return one(&eventsv1.SandboxScheduled{Placement: c.Placement})
}

func (c Start) decide(s Sandbox) ([]proto.Message, error) {
	switch {
	case !s.Exists():
		return nil, notFound(s.ID)
	case c.Worker != s.Worker:
		return nil, fault.Newf(fault.Conflict, fault.ReasonConflict, "sandbox %s is placed on another worker", s.ID)
	case s.State == Ready, s.State == Starting && c.Attempt <= s.Attempt:
		return nil, nil
	case s.State == Stopped, !stepStarting.possible(s.State):
		return nil, illegal(s.State, "a start")
	}
	return one(&eventsv1.SandboxStarting{Worker: c.Worker, Attempt: max(c.Attempt, s.Attempt+1)})
}

func (c Restart) decide(s Sandbox) ([]proto.Message, error) {
	switch {
	case !s.Exists():
		return nil, notFound(s.ID)
	case s.Expired(c.At):
		return nil, expired(s.ID)
	case s.State == Ready, s.State == Requested, s.State == Scheduled, s.State == Starting:
		return nil, nil
	case s.State != Stopped:
		return nil, illegal(s.State, "a start")
	case s.Events >= MaxEvents:
		return nil, tooMany(s.ID)
	}
	return one(&eventsv1.SandboxStarting{Worker: s.Worker, Attempt: s.Attempt + 1})
}

func (c GiveUp) decide(s Sandbox) ([]proto.Message, error) {
	switch {
	case !s.Exists():
		return nil, notFound(s.ID)
	case !s.Restarting():
		return nil, nil
	case c.Reason == "":
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "a start that is given up needs a reason")
	}
	return one(&eventsv1.SandboxStopped{Usage: clone(s.Usage), UptimeMs: inMillis(s.Uptime), Reason: string(c.Reason), Message: c.Message})
}

func (c MarkWaiting) decide(s Sandbox) ([]proto.Message, error) {
	if !s.Exists() {
		return nil, notFound(s.ID)
	}
	if s.State != Starting || c.Worker != s.Worker || string(c.Reason) == s.Reason && c.Message == s.Message {
		return nil, nil
	}
	return one(&eventsv1.SandboxStarting{Worker: s.Worker, Attempt: s.Attempt, Reason: string(c.Reason), Message: c.Message})
}

func (c MarkReady) decide(s Sandbox) ([]proto.Message, error) {
	switch {
	case !s.Exists():
		return nil, notFound(s.ID)
	case c.Worker != s.Worker:
		return nil, fault.Newf(fault.Conflict, fault.ReasonConflict, "sandbox %s is placed on another worker", s.ID)
	case s.State == Ready:
		return nil, nil
	case !stepReady.possible(s.State):
		return nil, illegal(s.State, "becoming ready")
	}
	return one(&eventsv1.SandboxReady{
		Worker:      c.Worker,
		RuntimeId:   c.RuntimeID,
		Hostname:    c.Hostname,
		ImageDigest: c.ImageDigest,
		Warm:        c.Warm,
		Phases:      c.Phases,
		Endpoint:    c.Endpoint,
	})
}

func (c Fail) decide(s Sandbox) ([]proto.Message, error) {
	switch {
	case !s.Exists():
		return nil, notFound(s.ID)
	case s.Ending():
		return nil, nil
	case c.Reason == "":
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "a failure needs a reason")
	}
	up := s.uptimeAt(c.At)
	return one(&eventsv1.SandboxFailed{
		Reason:   string(c.Reason),
		Message:  c.Message,
		Phase:    c.Phase,
		Usage:    s.lifeUsage(c.Usage, up),
		UptimeMs: inMillis(up),
	})
}

func (c Stop) decide(s Sandbox) ([]proto.Message, error) {
	switch {
	case !s.Exists():
		return nil, notFound(s.ID)
	case s.State == Stopping, s.State == Stopped:
		return nil, nil
	case !stepStopping.possible(s.State):
		return nil, illegal(s.State, "a stop")
	}
	return one(&eventsv1.SandboxStopping{})
}

func (c MarkStopped) decide(s Sandbox) ([]proto.Message, error) {
	switch {
	case !s.Exists():
		return nil, notFound(s.ID)
	case s.State == Stopped:
		return nil, nil
	case s.State != Stopping:
		return nil, illegal(s.State, "having stopped")
	}
	up := s.uptimeAt(c.At)
	return one(&eventsv1.SandboxStopped{Usage: s.lifeUsage(c.Usage, up), UptimeMs: inMillis(up)})
}

func (c Destroy) decide(s Sandbox) ([]proto.Message, error) {
	switch {
	case !s.Exists():
		return nil, notFound(s.ID)
	case s.State == Destroying, s.State == Destroyed:
		return nil, nil
	}
	reason := c.Reason
	if reason == "" {
		reason = ReasonRequested
	}
	return one(&eventsv1.SandboxDestroying{Reason: reason})
}

func (c Extend) decide(s Sandbox) ([]proto.Message, error) {
	switch {
	case !s.Exists():
		return nil, notFound(s.ID)
	case s.Ending():
		return nil, illegal(s.State, "more time")
	case s.Expired(c.At):
		return nil, expired(s.ID)
	case s.ExpiresAt.IsZero() || !c.ExpiresAt.After(s.ExpiresAt):
		return nil, nil
	case s.Events >= MaxEvents:
		return nil, tooMany(s.ID)
	}
	return one(&eventsv1.SandboxExtended{ExpiresAt: stamp(c.ExpiresAt)})
}

func tooMany(id string) error {
	return fault.Newf(fault.ResourceExhausted, fault.ReasonQuota, "sandbox %s has %d events, as many as it may: make another one", id, MaxEvents)
}

func (c Label) decide(s Sandbox) ([]proto.Message, error) {
	switch {
	case !s.Exists():
		return nil, notFound(s.ID)
	case !stepLabelled.possible(s.State):
		return nil, illegal(s.State, "other labels")
	case maps.Equal(c.Labels, s.Labels):
		return nil, nil
	case s.Relabelled >= MaxRelabels:
		return nil, fault.Newf(fault.ResourceExhausted, fault.ReasonQuota, "the labels of sandbox %s were changed %d times, as often as they may", s.ID, MaxRelabels)
	}
	return one(&eventsv1.SandboxLabelled{Labels: maps.Clone(c.Labels)})
}

func (c Use) decide(s Sandbox) ([]proto.Message, error) {
	if s.Exists() && !s.UsedUntil.Before(c.At.Add(s.UseHolds(c.At))) {
		return nil, nil
	}
	return Used{At: c.At.Add(2 * s.UseHolds(c.At))}.decide(s)
}

func (c Used) decide(s Sandbox) ([]proto.Message, error) {
	switch {
	case !s.Exists():
		return nil, notFound(s.ID)
	case s.IdleTimeout() == 0 || !stepUsed.possible(s.State) || !c.At.After(s.UsedUntil):
		return nil, nil
	}
	return one(&eventsv1.SandboxUsed{Until: stamp(c.At)})
}

func (c MarkDestroyed) decide(s Sandbox) ([]proto.Message, error) {
	switch {
	case !s.Exists():
		return nil, notFound(s.ID)
	case s.State == Destroyed:
		return nil, nil
	case !stepDestroyed.possible(s.State):
		return nil, illegal(s.State, "being gone")
	}
	up := s.uptimeAt(c.At)
	return one(&eventsv1.SandboxDestroyed{
		Reason:               s.Reason,
		UptimeMs:             inMillis(up),
		Usage:                s.lifeUsage(c.Usage, up),
		WorkspaceDeleteAfter: stamp(c.DeleteAfter),
	})
}

func (c SampleUsage) decide(s Sandbox) ([]proto.Message, error) {
	if !s.Exists() {
		return nil, notFound(s.ID)
	}
	if s.State != Ready || c.Usage == nil {
		return nil, nil
	}
	up := s.uptimeAt(c.At)
	return one(&eventsv1.SandboxUsageSampled{Usage: s.lifeUsage(c.Usage, up), UptimeMs: inMillis(up)})
}

// Reasons of SandboxDestroying and, through it, SandboxDestroyed.
const (
	ReasonRequested = "requested"
	ReasonExpired   = "expired"
	ReasonIdle      = "idle"
	ReasonFailed    = "failed"
	ReasonOrphaned  = "orphaned"
)
