package sandbox

import (
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// maxName bounds a name, in bytes.
const maxName = 64

// NameRule is what a name must be, for people.
const NameRule = "must be 1 to 64 of A-Z a-z 0-9 . _ -, and begin with a letter or a digit"

// ValidName reports whether s may be the name of a sandbox. It then stands in a path as it is.
func ValidName(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for i := range len(s) {
		c := s[i]
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !plain && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return true
}

// NameID is the id of a name's aggregate: names have letters that a subject has not.
func NameID(name string) string { return ids.Derive("name", name) }

// Name is a name of a tenant as its events tell it: at each time at most one sandbox has it.
type Name struct {
	Name string
	// Sandbox that has the name; empty: it is free.
	Sandbox string
	// Seq is the stream sequence of its last event.
	Seq uint64
}

// FoldName makes the state from a history, with the faults of Fold. The last event alone says all, so a history that lacks its
// beginning will do.
func FoldName(h eventlog.History) (Name, error) {
	var n Name
	for _, e := range h.Events {
		next, err := n.Evolve(e)
		if err != nil {
			return n, err
		}
		n = next
	}
	return n, nil
}

// Evolve is the state behind e, with the faults of Sandbox.Evolve.
func (n Name) Evolve(e envelope.Recorded) (Name, error) {
	switch b := e.Body.(type) {
	case *eventsv1.NameReserved:
		return Name{Name: b.GetName(), Sandbox: b.GetSandboxId(), Seq: e.Seq}, nil
	case *eventsv1.NameReleased:
		return Name{Name: b.GetName(), Seq: e.Seq}, nil
	}
	return n, unknownEvent(e)
}

// ReserveName gives a free name to a sandbox. The sandbox that has it keeps it.
type ReserveName struct {
	Name, Sandbox string
	// Gone says of the sandbox that has the name now that it was destroyed, which frees a name that nobody released.
	Gone string
}

// ReleaseName takes a name from the sandbox that has it. From any other it takes nothing.
type ReleaseName struct{ Name, Sandbox string }

// NameCommand is ReserveName or ReleaseName.
type NameCommand interface {
	decideName(n Name) ([]proto.Message, error)
}

// DecideName is Decide for names. A name that another sandbox has is fault.Conflict with ReasonNameTaken.
func DecideName(n Name, c NameCommand) ([]proto.Message, error) {
	if c == nil {
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "there is no command")
	}
	return c.decideName(n)
}

func (c ReserveName) decideName(n Name) ([]proto.Message, error) {
	switch {
	case !ValidName(c.Name) || c.Sandbox == "":
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "the name cannot be reserved").
			WithFields(map[string]string{"name": NameRule})
	case n.Sandbox == c.Sandbox:
		return nil, nil
	case n.Sandbox != "" && n.Sandbox != c.Gone:
		return nil, fault.Newf(fault.Conflict, fault.ReasonNameTaken, "there is a sandbox of the name %s; delete it first, or take another name", c.Name)
	}
	return one(&eventsv1.NameReserved{Name: c.Name, SandboxId: c.Sandbox})
}

func (c ReleaseName) decideName(n Name) ([]proto.Message, error) {
	if c.Sandbox == "" || n.Sandbox != c.Sandbox {
		return nil, nil
	}
	return one(&eventsv1.NameReleased{Name: c.Name, SandboxId: c.Sandbox})
}
