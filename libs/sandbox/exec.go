package sandbox

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// States of an exec. Before its first event it is empty; it may go to running at once. ExecRequested has the text of
// Requested.
const (
	ExecRequested = "requested"
	ExecRunning   = "running"
	ExecCompleted = "completed"
	ExecLost      = "lost"
)

// Reasons of an ExecCompleted.
const (
	ReasonExited           = "exited"
	ReasonSignaled         = "signaled"
	ReasonTimedOut         = "timed_out"
	ReasonCancelled        = "cancelled"
	ReasonStartFailed      = "start_failed"
	ReasonOOMKilled        = "oom_killed"
	ReasonOutputLimit      = "output_limit"
	ReasonSandboxDestroyed = "sandbox_destroyed"
	ReasonSandboxStopped   = "sandbox_stopped"
)

// RecordPending is what the worker of an exec tells its readers while it has seen the end and cannot record it.
const RecordPending = "record_pending"

// neverRan are the ends that an exec may have without a start.
var neverRan = []string{ReasonTimedOut, ReasonCancelled, ReasonStartFailed, ReasonSandboxDestroyed, ReasonSandboxStopped}

// Exec is one run of a command as its events tell it.
type Exec struct {
	ID      string
	Sandbox string
	Tenant  string
	// State is one of the constants, or empty before the first event.
	State string
	// Spec, Completed and Lost are shared with their events: read only.
	Spec      *eventsv1.ExecSpec
	Completed *eventsv1.ExecCompleted
	Lost      *eventsv1.ExecLost
	// Worker is the one that won the fence.
	Worker      string
	RequestedAt time.Time
	StartedAt   time.Time
	EndedAt     time.Time
	// CancelRequested is the reason of the first request to cancel it; empty without one. It changes no state.
	CancelRequested string
	// Resizes are the later sizes of its terminal, oldest first.
	Resizes []TerminalResize
	// CommandID is the command that asked for it.
	CommandID string
	// UsageEventID is the id of its row of usage, known from its end on.
	UsageEventID string
	FirstSeq     uint64
	LastSeq      uint64
	// StartedSeq is the stream sequence of its start, 0 before it; a view does not have it.
	StartedSeq uint64
	// Digest of its last event.
	Digest []byte
}

// Exists reports whether it has any event.
func (x Exec) Exists() bool { return x.State != "" }

// Over reports whether its end is recorded.
func (x Exec) Over() bool { return x.State == ExecCompleted || x.State == ExecLost }

// Started reports whether the fence was taken, by whomever.
func (x Exec) Started() bool { return !x.StartedAt.IsZero() }

// FoldExec makes the state from a history, with the faults of Fold.
func FoldExec(h eventlog.History) (Exec, error) {
	x := Exec{ID: h.Aggregate.ID, Sandbox: h.Aggregate.Sandbox, Tenant: h.Aggregate.Tenant}
	for _, e := range h.Events {
		next, err := x.Evolve(e)
		if err != nil {
			return x, err
		}
		x = next
	}
	return x, nil
}

// ShowExec is Show for execs.
func ShowExec(h eventlog.History) (Exec, error) {
	x, err := FoldExec(eventlog.History{Aggregate: h.Aggregate, Events: known(h.Events)})
	if tail := h.Tail(); err == nil {
		x.LastSeq, x.Digest = tail.Seq, tail.Digest
	}
	return x, err
}

// Evolve is the state behind e, with the faults of Sandbox.Evolve.
func (x Exec) Evolve(e envelope.Recorded) (Exec, error) {
	next := x
	switch b := e.Body.(type) {
	case *eventsv1.ExecRequested:
		if x.State != "" {
			return x, illegal(x.State, "event requested")
		}
		next.accept(e, b.GetSandboxId(), b.GetExecId(), b.GetSpec(), timeOf(b.GetRequestedAt()))
		next.State = ExecRequested
	case *eventsv1.ExecStarted:
		if x.State != "" && x.State != ExecRequested {
			return x, illegal(x.State, "event started")
		}
		if x.State == "" {
			next.accept(e, b.GetSandboxId(), b.GetExecId(), b.GetSpec(), timeOf(b.GetRequestedAt()))
		}
		next.State, next.Worker, next.StartedAt, next.StartedSeq = ExecRunning, b.GetWorker(), e.Time, e.Seq
	case *eventsv1.ExecCancelRequested:
		if !x.Exists() || x.Over() {
			return x, illegal(x.State, "event cancel requested")
		}
		if x.CancelRequested == "" {
			next.CancelRequested = b.GetReason()
		}
	case *eventsv1.ExecResized:
		var err error
		if next, err = x.resized(e, b); err != nil {
			return x, err
		}
	case *eventsv1.ExecCompleted:
		if !x.mayComplete(b.GetReason()) {
			return x, illegal(x.State, "event completed")
		}
		next.State, next.Completed, next.EndedAt = ExecCompleted, b, e.Time
		next.UsageEventID = b.GetUsageEventId()
	case *eventsv1.ExecLost:
		if !x.Exists() || x.Over() {
			return x, illegal(x.State, "event lost")
		}
		next.State, next.Lost, next.EndedAt = ExecLost, b, e.Time
		next.UsageEventID = b.GetUsageEventId()
	default:
		return x, unknownEvent(e)
	}
	if next.FirstSeq == 0 {
		next.FirstSeq = e.Seq
	}
	next.LastSeq, next.Digest = e.Seq, e.Digest
	return next, nil
}

func (x *Exec) accept(e envelope.Recorded, sandbox, id string, spec *eventsv1.ExecSpec, at time.Time) {
	if e.Tenant != "" {
		x.Tenant = e.Tenant
	}
	if at.IsZero() {
		at = e.Time
	}
	x.Sandbox, x.ID, x.Spec, x.RequestedAt, x.CommandID = sandbox, id, spec, at, e.Cause
}

func (x Exec) mayComplete(reason string) bool {
	return x.State == ExecRunning || x.State == ExecRequested && slices.Contains(neverRan, reason)
}

// EndCommand is the command id under which the end of an exec is recorded, completed or lost, by whomever. Its event's id is
// ids.Event(EndCommand(exec), 0) and the usage row's UsageEventID(exec), both known before the end.
func EndCommand(exec string) string { return ids.Derive("exec-end", exec) }

// UsageEventID is the id of the row of usage that the end of an exec makes.
func UsageEventID(exec string) string { return ids.Usage(ids.Event(EndCommand(exec), 0)) }

// ExecCommand is one of the structs below.
type ExecCommand interface {
	decideExec(x Exec) ([]proto.Message, error)
}

// RequestExec accepts an exec whose sandbox is not ready yet. Repeated with the same CommandID it decides nothing; with another
// one it is refused with exec_exists.
type RequestExec struct {
	CommandID   string
	SandboxID   string
	ExecID      string
	Spec        *eventsv1.ExecSpec
	RequestedAt time.Time
}

// StartExec takes the fence. Only who appends the event that it decides may start the program. Once it has been taken it
// decides nothing, whoever took it; for another CommandID than the one that asked for the exec it is refused with exec_exists.
type StartExec struct {
	CommandID   string
	SandboxID   string
	ExecID      string
	Spec        *eventsv1.ExecSpec
	Worker      string
	RequestedAt time.Time
}

// CompleteExec records an observed end. UsageEventId is filled in where it is empty, for which the event must be appended under
// EndCommand. An exec that is over already keeps its first end: nothing is decided. One that was never started may only end as
// timed_out, cancelled, start_failed, sandbox_destroyed or sandbox_stopped.
type CompleteExec struct {
	Completed *eventsv1.ExecCompleted
}

// LoseExec records that the end can no longer be observed. UsageEventId as in CompleteExec; over already: decides nothing.
type LoseExec struct {
	Lost *eventsv1.ExecLost
}

// RequestCancel records that somebody wants its end. A second one, and one behind the end, decide nothing. Reason: cancelled,
// timed_out, client_gone.
type RequestCancel struct {
	Reason string
}

// DecideExec is Decide for execs.
func DecideExec(x Exec, c ExecCommand) ([]proto.Message, error) {
	if c == nil {
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "there is no command")
	}
	return c.decideExec(x)
}

// admit says whether a command may act on x: it asked for x, or x does not exist and the request is whole.
func (x Exec) admit(commandID, sandbox, id string, spec *eventsv1.ExecSpec) error {
	if x.Exists() {
		if commandID == "" || commandID != x.CommandID {
			return fault.Newf(fault.Conflict, fault.ReasonExecExists, "exec %s exists already", x.ID)
		}
		return nil
	}
	if commandID == "" || sandbox == "" || id == "" || spec.GetCommand() == "" {
		return fault.New(fault.InvalidArgument, fault.ReasonValidation, "an exec needs a command id, its sandbox, an id and a command")
	}
	return nil
}

func (c RequestExec) decideExec(x Exec) ([]proto.Message, error) {
	if err := x.admit(c.CommandID, c.SandboxID, c.ExecID, c.Spec); err != nil || x.Exists() {
		return nil, err
	}
	return one(&eventsv1.ExecRequested{
		SandboxId: c.SandboxID, ExecId: c.ExecID, Spec: c.Spec, RequestedAt: stamp(c.RequestedAt),
	})
}

func (c StartExec) decideExec(x Exec) ([]proto.Message, error) {
	if err := x.admit(c.CommandID, c.SandboxID, c.ExecID, c.Spec); err != nil {
		return nil, err
	}
	if x.Exists() && x.State != ExecRequested {
		return nil, nil
	}
	started := &eventsv1.ExecStarted{
		SandboxId: c.SandboxID, ExecId: c.ExecID, Spec: c.Spec, Worker: c.Worker, RequestedAt: stamp(c.RequestedAt),
	}
	if x.State == ExecRequested {
		started.SandboxId, started.ExecId, started.Spec = x.Sandbox, x.ID, x.Spec
		started.RequestedAt = stamp(x.RequestedAt)
	}
	return one(started)
}

func (c CompleteExec) decideExec(x Exec) ([]proto.Message, error) {
	switch {
	case !x.Exists():
		return nil, execNotFound(x.ID)
	case x.Over():
		return nil, nil
	case c.Completed.GetReason() == "":
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "a completed exec needs a reason")
	case !x.mayComplete(c.Completed.GetReason()):
		return nil, illegal(x.State, "an end by "+c.Completed.GetReason())
	}
	end := proto.CloneOf(c.Completed)
	if end.GetUsageEventId() == "" {
		end.UsageEventId = UsageEventID(x.ID)
	}
	if end.GetSessionId() == "" {
		end.SessionId = x.Spec.GetSessionId()
	}
	return one(end)
}

func (c LoseExec) decideExec(x Exec) ([]proto.Message, error) {
	switch {
	case !x.Exists():
		return nil, execNotFound(x.ID)
	case x.Over():
		return nil, nil
	case c.Lost.GetReason() == "":
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "a lost exec needs a reason")
	}
	end := proto.CloneOf(c.Lost)
	if end.GetUsageEventId() == "" {
		end.UsageEventId = UsageEventID(x.ID)
	}
	if end.GetSessionId() == "" {
		end.SessionId = x.Spec.GetSessionId()
	}
	return one(end)
}

func (c RequestCancel) decideExec(x Exec) ([]proto.Message, error) {
	switch {
	case !x.Exists():
		return nil, execNotFound(x.ID)
	case x.Over(), x.CancelRequested != "":
		return nil, nil
	}
	reason := c.Reason
	if reason == "" {
		reason = ReasonCancelled
	}
	return one(&eventsv1.ExecCancelRequested{Reason: reason})
}

func execNotFound(id string) error {
	return fault.Newf(fault.NotFound, fault.ReasonExecNotFound, "there is no exec %s", id)
}
