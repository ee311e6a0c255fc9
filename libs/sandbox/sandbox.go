// Package sandbox decides what may happen to a sandbox, its execs and its workspace, and says what has happened from their
// events. It is pure: no clock, no random id, no input or output. Time and ids come in with the commands.
//
//	bodies, err := sandbox.Decide(state, command)   // what a command leads to, or why it is refused
//	state, err = state.Evolve(recorded)             // what an event makes of the state
//
// A command that has been carried out already decides nothing and is no error, so every command may be repeated. Whatever
// Decide returns, Evolve accepts.
package sandbox

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// States of a sandbox. The empty state is an aggregate without events.
const (
	Requested  = "requested"
	Scheduled  = "scheduled"
	Starting   = "starting"
	Ready      = "ready"
	Failed     = "failed"
	Stopping   = "stopping"
	Stopped    = "stopped"
	Destroying = "destroying"
	Destroyed  = "destroyed"
)

// Sandbox is a sandbox as its events tell it.
type Sandbox struct {
	ID     string
	Tenant string
	// State is one of the constants, or empty before the first event.
	State     string
	SessionID string
	OrgID     string
	Image     string
	// Name that its tenant gave it; empty: none.
	Name string
	// Hostname, RuntimeID and ImageDigest are known from ready on.
	Hostname    string
	RuntimeID   string
	ImageDigest string
	Worker      string
	// Endpoint is where its agent answers while it runs, nil where a keeper does. Shared with the event: read only.
	Endpoint *eventsv1.Endpoint
	// Reason and Message say why it failed or is being destroyed, while it starts what keeps it from being ready, or why its last start
	// left it stopped; Reason is a fault.Reason or a reason of SandboxDestroying. A start that goes as it should may have a message alone.
	Reason  string
	Message string
	EnvKeys []string
	// Labels that it has now; Requested has those that it began with.
	Labels map[string]string
	// Relabelled counts how often they were changed.
	Relabelled int
	// Egress is where its programs may connect to now; nil: nowhere, and there is no way to ask. Shared with the event: read only.
	Egress *eventsv1.Egress
	// EgressSets counts how often that was changed.
	EgressSets int
	// Snapshot is the last that was asked for.
	Snapshot Snapshot
	// Limits, Workspace and Requested are shared with the event: read only.
	Limits    *eventsv1.Limits
	Workspace *eventsv1.Workspace
	Requested *eventsv1.SandboxRequested
	// CommandID is the command that created it.
	CommandID string
	// Attempt counts the starts that were begun, from 1.
	Attempt uint32

	CreatedAt time.Time
	// OrderedAt is when its present or last start was asked for: with its creation, or while it was stopped.
	OrderedAt  time.Time
	StartingAt time.Time
	// ReadyAt is the first ready; RunningSince the last one, zero while it does not run.
	ReadyAt      time.Time
	RunningSince time.Time
	// ReadySeq is the stream sequence of the last ready: an exec that was started before it ran in an earlier run.
	ReadySeq uint64
	// EndedAt is when it failed or, otherwise, was destroyed.
	EndedAt time.Time
	// DestroyingAt is when its end was decided.
	DestroyingAt time.Time
	// ExpiresAt is created + max_runtime unless it was extended; zero is never.
	ExpiresAt time.Time
	// UsedUntil is when it last counted as in use, which may lie ahead; zero: nothing was recorded of its use.
	UsedUntil time.Time
	// DeleteAfter is the time before which its workspace is kept; set by destroyed.
	DeleteAfter time.Time

	// Usage is the last known cumulative usage of its whole life; nil before any is known. Uptime is from ready to the end
	// without the times it was stopped.
	Usage  *commonv1.UsageMetrics
	Uptime time.Duration
	// PastUsage and PastUptime are what the runs before the present one add up to.
	PastUsage  *commonv1.UsageMetrics
	PastUptime time.Duration
	// Seq is the stream sequence of its last event, Digest that event's digest. Events is how many it has.
	Seq    uint64
	Digest []byte
	Events int
}

// Exists reports whether it has any event.
func (s Sandbox) Exists() bool { return s.State != "" }

// Over reports whether nothing of it runs and nothing ever will: destroyed, or failed.
func (s Sandbox) Over() bool { return s.State == Destroyed || s.State == Failed }

// Ending reports whether its end is decided or reached: a start under way must stop.
func (s Sandbox) Ending() bool { return s.Over() || s.State == Destroying }

// Restarting reports whether it was stopped and is being brought back: there are files of its own that a start must not lose.
func (s Sandbox) Restarting() bool { return s.State == Starting && !s.ReadyAt.IsZero() }

// Expired reports whether its time is over at now and its end is not decided yet. A failed sandbox expires too: that is
// when its workspace is released.
func (s Sandbox) Expired(now time.Time) bool {
	return s.Exists() && s.State != Destroying && s.State != Destroyed && !s.ExpiresAt.IsZero() && !now.Before(s.ExpiresAt)
}

// IdleTimeout is for how long nothing may be done with it before it is to end; 0: for ever.
func (s Sandbox) IdleTimeout() time.Duration { return millis(s.Limits.GetIdleTimeoutMs()) }

// UseHolds is for how long, from its moment on, a Use covers all further use: who has said it need not say it again. It is a quarter of the
// idle timeout, or a thousandth of the sandbox's age where that is more.
func (s Sandbox) UseHolds(at time.Time) time.Duration {
	return max(s.IdleTimeout()/4, s.UseGrain(at))
}

// UseGrain is how exactly its use is recorded: by a thousandth of its age. So the events of a sandbox that is used all the time grow with the
// logarithm of its age, by 2,300 for ten times as long, and its history stays one that can be read.
func (s Sandbox) UseGrain(at time.Time) time.Duration {
	if s.CreatedAt.IsZero() {
		return 0
	}
	return max(0, at.Sub(s.CreatedAt)/1000)
}

// IdleAt is when it has been idle for its timeout if it is not used any more; zero is never. Only what runs is idle.
func (s Sandbox) IdleAt() time.Time {
	timeout := s.IdleTimeout()
	if timeout == 0 || s.State != Ready {
		return time.Time{}
	}
	if s.UsedUntil.After(s.RunningSince) {
		return s.UsedUntil.Add(timeout)
	}
	return s.RunningSince.Add(timeout)
}

// Idle reports whether its idle timeout is over at now, as far as its own events tell.
func (s Sandbox) Idle(now time.Time) bool {
	at := s.IdleAt()
	return !at.IsZero() && !now.Before(at)
}

// Fold makes the state from a history. Events it does not know are refused with fault reason unknown_event, because a
// decision without them might be wrong.
func Fold(h eventlog.History) (Sandbox, error) {
	s := Sandbox{ID: h.Aggregate.ID, Tenant: h.Aggregate.Tenant}
	for _, e := range h.Events {
		next, err := s.Evolve(e)
		if err != nil {
			return s, err
		}
		s = next
	}
	return s, nil
}

// Show is Fold for who shows and decides nothing: events of types that this version does not know are left out. Sequence and digest
// are those of the history's end all the same.
func Show(h eventlog.History) (Sandbox, error) {
	s, err := Fold(eventlog.History{Aggregate: h.Aggregate, Events: known(h.Events)})
	if tail := h.Tail(); err == nil {
		s.Seq, s.Digest = tail.Seq, tail.Digest
	}
	return s, err
}

func known(events []envelope.Recorded) []envelope.Recorded {
	return slices.DeleteFunc(slices.Clone(events), func(e envelope.Recorded) bool { return e.Body == nil })
}

// CommandMeta is what all events of one decision have in common.
type CommandMeta struct {
	// ID of the command: event ids are derived from it, and it becomes the events' cause.
	ID          string
	Actor       string
	Correlation string
	Time        time.Time
	Tenant      string
}

// Events puts the bodies of one decision into envelopes. The id of the i-th is ids.Event(c.ID, i), so that a repeated
// decision makes the same ids.
func Events(c CommandMeta, bodies ...proto.Message) []envelope.Event {
	out := make([]envelope.Event, 0, len(bodies))
	for i, b := range bodies {
		out = append(out, envelope.Event{
			Meta: envelope.Meta{
				ID:          ids.Event(c.ID, i),
				Tenant:      c.Tenant,
				Actor:       c.Actor,
				Cause:       c.ID,
				Correlation: c.Correlation,
				Time:        c.Time.UTC(),
			},
			Body: b,
		})
	}
	return out
}

func notFound(id string) error {
	return fault.Newf(fault.NotFound, fault.ReasonSandboxNotFound, "there is no sandbox %s", id)
}

func expired(id string) error {
	return fault.Newf(fault.FailedPrecondition, fault.ReasonSandboxExpired, "the time of sandbox %s is over", id)
}

func illegal(state, what string) error {
	if state == "" {
		state = "unknown"
	}
	return fault.Newf(fault.FailedPrecondition, fault.ReasonIllegalState, "%s is not possible in state %s", what, state)
}

func unknownEvent(e envelope.Recorded) error {
	return fault.Newf(fault.Internal, fault.ReasonUnknownEvent,
		"event %d of type %s is not known to this version; run a newer one", e.Seq, e.Type)
}
