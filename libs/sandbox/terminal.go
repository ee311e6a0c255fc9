package sandbox

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// MaxResizes is how many changes of its terminal's size are recorded of one exec: somebody may pull at a window's corner all day.
const MaxResizes = 500

// TerminalResize is a change of a terminal's size.
type TerminalResize struct {
	Time time.Time
	// Size is shared with its event: read only.
	Size *commonv1.TerminalSize
}

// ResizeExec records that the terminal of a running exec has another size. The size that it has, and a change behind MaxResizes, decide
// nothing. An exec without a terminal, and one that does not run, is illegal_state.
type ResizeExec struct {
	Size *commonv1.TerminalSize
}

func (c ResizeExec) decideExec(x Exec) ([]proto.Message, error) {
	switch {
	case !x.Exists():
		return nil, execNotFound(x.ID)
	case x.Spec.GetTerminal() == nil:
		return nil, fault.New(fault.FailedPrecondition, fault.ReasonIllegalState, "the command has no terminal")
	case x.State != ExecRunning:
		return nil, illegal(x.State, "another size of its terminal")
	case c.Size.GetColumns() == 0 || c.Size.GetRows() == 0:
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "a terminal has at least one column and one row")
	case proto.Equal(c.Size, x.TerminalSize()), len(x.Resizes) >= MaxResizes:
		return nil, nil
	}
	return one(&eventsv1.ExecResized{Size: c.Size})
}

// TerminalSize is the last size that is recorded of its terminal; nil without one.
func (x Exec) TerminalSize() *commonv1.TerminalSize {
	if n := len(x.Resizes); n > 0 {
		return x.Resizes[n-1].Size
	}
	return x.Spec.GetTerminal()
}

// resized is the state behind an ExecResized.
func (x Exec) resized(e envelope.Recorded, b *eventsv1.ExecResized) (Exec, error) {
	if x.State != ExecRunning || x.Spec.GetTerminal() == nil {
		return x, illegal(x.State, "event resized")
	}
	x.Resizes = append(slices.Clone(x.Resizes), TerminalResize{Time: e.Time, Size: b.GetSize()})
	return x, nil
}
