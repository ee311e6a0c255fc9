package sandbox

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// Snapshot is how far an order to make an image of a sandbox's root is; the zero value is none.
type Snapshot struct {
	// Seq is the stream sequence of the event that began it, which names it. CommandID is the command behind that.
	Seq       uint64
	CommandID string
	// Image is its name as it was asked for.
	Image string
	At    time.Time
	// Count is how many were asked for, this one included.
	Count int
	// Over: it has ended. Reason is empty where there is an image then, of this Digest.
	Over    bool
	Digest  string
	Bytes   uint64
	Files   uint64
	Pushed  bool
	Reason  string
	Message string
}

// Pending reports whether it is being made. Of a sandbox that is over nothing is made any more.
func (s Snapshot) Pending() bool { return s.Seq > 0 && !s.Over }

func (s Snapshot) behind(e envelope.Recorded) Snapshot {
	switch b := e.Body.(type) {
	case *eventsv1.SandboxSnapshotting:
		return Snapshot{Seq: e.Seq, CommandID: e.Cause, Image: b.GetImage(), At: e.Time, Count: s.Count + 1}
	case *eventsv1.SandboxSnapshotted:
		if b.GetSequence() == s.Seq {
			s.Over, s.Digest, s.Bytes, s.Files, s.Pushed = true, b.GetDigest(), b.GetBytes(), b.GetFiles(), b.GetPushed()
		}
	case *eventsv1.SandboxSnapshotFailed:
		if b.GetSequence() == s.Seq {
			s.Over, s.Reason, s.Message = true, b.GetReason(), b.GetMessage()
		}
	}
	return s
}

// MaxSnapshots bounds how often a sandbox is made an image of: whoever decides about it reads them all.
const MaxSnapshots = 1000

// TakeSnapshot asks for an image of the root. Repeated with the CommandID of the last one it decides nothing. Refused with illegal_state unless it
// is ready, and while another one is made; with fault.ResourceExhausted behind MaxSnapshots.
type TakeSnapshot struct {
	CommandID string
	Image     string
}

// MarkSnapshotted says that the snapshot of Sequence is there. It decides nothing unless that one is being made.
type MarkSnapshotted struct {
	Sequence     uint64
	Digest       string
	Bytes, Files uint64
	Pushed       bool
}

// FailSnapshot says that there is none of Sequence. It decides nothing unless that one is being made.
type FailSnapshot struct {
	Sequence uint64
	Reason   fault.Reason
	Message  string
}

func (c TakeSnapshot) decide(s Sandbox) ([]proto.Message, error) {
	switch {
	case !s.Exists():
		return nil, notFound(s.ID)
	case c.CommandID != "" && c.CommandID == s.Snapshot.CommandID:
		return nil, nil
	case c.CommandID == "" || c.Image == "":
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "a snapshot needs a command and a name")
	case s.State == Stopped:
		return nil, fault.Newf(fault.FailedPrecondition, fault.ReasonSandboxStopped, "sandbox %s is stopped: start it for a snapshot; a start runs nothing of yours", s.ID)
	case !stepSnapshotting.possible(s.State):
		return nil, illegal(s.State, "a snapshot")
	case s.Snapshot.Pending():
		return nil, fault.Newf(fault.FailedPrecondition, fault.ReasonIllegalState, "another snapshot of sandbox %s is being made", s.ID)
	case s.Snapshot.Count >= MaxSnapshots:
		return nil, fault.Newf(fault.ResourceExhausted, fault.ReasonQuota, "sandbox %s was made %d snapshots of, as many as there may be", s.ID, MaxSnapshots)
	}
	return one(&eventsv1.SandboxSnapshotting{Image: c.Image})
}

// awaits reports whether the snapshot of seq can still end.
func (s Sandbox) awaits(seq uint64) bool {
	return s.Snapshot.Pending() && s.Snapshot.Seq == seq && stepSnapshotted.possible(s.State)
}

func (c MarkSnapshotted) decide(s Sandbox) ([]proto.Message, error) {
	switch {
	case !s.Exists():
		return nil, notFound(s.ID)
	case !s.awaits(c.Sequence):
		return nil, nil
	}
	return one(&eventsv1.SandboxSnapshotted{
		Image: s.Snapshot.Image, Digest: c.Digest, Bytes: c.Bytes, Files: c.Files, Sequence: c.Sequence, Pushed: c.Pushed,
	})
}

func (c FailSnapshot) decide(s Sandbox) ([]proto.Message, error) {
	switch {
	case !s.Exists():
		return nil, notFound(s.ID)
	case !s.awaits(c.Sequence):
		return nil, nil
	case c.Reason == "":
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "a failure needs a reason")
	}
	return one(&eventsv1.SandboxSnapshotFailed{Reason: string(c.Reason), Message: c.Message, Sequence: c.Sequence})
}
