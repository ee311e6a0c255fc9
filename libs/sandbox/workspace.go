package sandbox

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// States of a workspace. The empty state is one that belongs to a sandbox which is not gone yet.
const (
	Released = "released"
	Deleted  = "deleted"
)

// Workspace is the disk of a sandbox once that sandbox is gone.
type Workspace struct {
	// ID is the sandbox's.
	ID          string
	Tenant      string
	State       string
	Worker      string
	DeleteAfter time.Time
	SizeBytes   uint64
	ReleasedAt  time.Time
	DeletedAt   time.Time
	Seq         uint64
}

// Due reports whether it may be removed at now: released, not deleted, and its time has come. A workspace without a
// delete-after is never due.
func (w Workspace) Due(now time.Time) bool {
	return w.State == Released && !w.DeleteAfter.IsZero() && !now.Before(w.DeleteAfter)
}

// FoldWorkspace makes the state from a history, with the faults of Fold.
func FoldWorkspace(h eventlog.History) (Workspace, error) {
	w := Workspace{ID: h.Aggregate.ID, Tenant: h.Aggregate.Tenant}
	for _, e := range h.Events {
		next, err := w.Evolve(e)
		if err != nil {
			return w, err
		}
		w = next
	}
	return w, nil
}

// Evolve is the state behind e, with the faults of Sandbox.Evolve.
func (w Workspace) Evolve(e envelope.Recorded) (Workspace, error) {
	next := w
	switch b := e.Body.(type) {
	case *eventsv1.WorkspaceReleased:
		if w.State != "" {
			return w, illegal(w.State, "event released")
		}
		next.ID, next.State, next.Worker = b.GetSandboxId(), Released, b.GetWorker()
		next.DeleteAfter, next.SizeBytes, next.ReleasedAt = timeOf(b.GetDeleteAfter()), b.GetSizeBytes(), e.Time
	case *eventsv1.WorkspaceDeleted:
		if w.State == Deleted {
			return w, illegal(w.State, "event deleted")
		}
		next.ID, next.State, next.DeletedAt = b.GetSandboxId(), Deleted, e.Time
	default:
		return w, unknownEvent(e)
	}
	next.Seq = e.Seq
	return next, nil
}

// WorkspaceCommand is ReleaseWorkspace or MarkWorkspaceDeleted.
type WorkspaceCommand interface {
	decideWorkspace(w Workspace) ([]proto.Message, error)
}

// ReleaseWorkspace says that its sandbox is gone. Released or deleted already: decides nothing.
type ReleaseWorkspace struct {
	SandboxID   string
	Worker      string
	DeleteAfter time.Time
	SizeBytes   uint64
}

// MarkWorkspaceDeleted says that it was observed gone. Reason: delete_after, which is refused before its time, or orphan,
// for one that the log never released.
type MarkWorkspaceDeleted struct {
	At        time.Time
	SandboxID string
	Reason    string
}

// Reasons of WorkspaceDeleted.
const (
	ReasonDeleteAfter = "delete_after"
	ReasonOrphan      = "orphan"
)

// DecideWorkspace is Decide for workspaces.
func DecideWorkspace(w Workspace, c WorkspaceCommand) ([]proto.Message, error) {
	if c == nil {
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "there is no command")
	}
	return c.decideWorkspace(w)
}

func (c ReleaseWorkspace) decideWorkspace(w Workspace) ([]proto.Message, error) {
	if w.State != "" {
		return nil, nil
	}
	if c.SandboxID == "" || c.DeleteAfter.IsZero() {
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "a released workspace needs its sandbox and a delete-after")
	}
	return one(&eventsv1.WorkspaceReleased{
		SandboxId:   c.SandboxID,
		Worker:      c.Worker,
		DeleteAfter: stamp(c.DeleteAfter),
		SizeBytes:   c.SizeBytes,
	})
}

func (c MarkWorkspaceDeleted) decideWorkspace(w Workspace) ([]proto.Message, error) {
	switch {
	case w.State == Deleted:
		return nil, nil
	case c.SandboxID == "":
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "a deleted workspace needs its sandbox")
	case c.Reason == ReasonOrphan:
	case !w.Due(c.At):
		return nil, fault.New(fault.FailedPrecondition, fault.ReasonIllegalState, "the workspace must be kept until its delete-after time")
	}
	return one(&eventsv1.WorkspaceDeleted{SandboxId: c.SandboxID, Reason: c.Reason})
}
