package check

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

// Exit codes of programs that never ran, as a shell has them.
const (
	codeNotStarted = 126
	codeNotFound   = 127
	ofSignal       = 128
)

// tick is what two clocks of one host may differ by where a time limit is judged.
const tick = 100 * time.Millisecond

// trueEnd: no exit code is invented. It is the program's own, or a recorded cause explains it; and every client was told the same.
func trueEnd(w *world) []finding {
	var f findings
	ran := map[string]bool{}
	for _, wit := range w.Witnesses {
		for token := range wit.Starts {
			ran[token] = true
		}
	}
	for _, x := range sorted(w.runs) {
		if c := x.state.Completed; c != nil {
			if why := w.unexplained(x, c, ran[x.token]); why != "" {
				f.add(x.agg.Subject(), "it completed as %s with code %d and signal %d, and %s", c.GetReason(), c.GetExitCode(), c.GetSignal(), why)
			}
		}
		if l := x.state.Lost; l != nil && l.GetReason() == "" {
			f.add(x.agg.Subject(), "it is lost without a reason")
		}
		for _, c := range x.calls {
			if c.End != nil && *c.End != x.end(c.End) {
				f.add(x.agg.Subject(), "call %d was told the end %+v, and the log says %+v", c.Number, *c.End, x.end(c.End))
			}
		}
	}
	return f
}

// end is what a client must be told of the end. The digests are those that it was told: trueOutput judges them.
func (x *run) end(told *journal.End) journal.End {
	c := x.state.Completed
	if c == nil {
		return journal.End{Lost: x.state.Lost != nil}
	}
	return journal.End{
		ExitCode: c.GetExitCode(), Signal: c.GetSignal(), Reason: c.GetReason(), UsageEventID: c.GetUsageEventId(),
		Stdout: told.Stdout, Stderr: told.Stderr,
	}
}

// endedItself: its end is the one that the program was built to have.
func (x *run) endedItself() bool {
	c := x.state.Completed
	return c.GetReason() == sandbox.ReasonExited || c.GetReason() == sandbox.ReasonSignaled && x.program != nil && c.GetSignal() == x.program.Signal
}

// own: the end is the program's.
func (x *run) own(c *eventsv1.ExecCompleted) bool {
	p := x.program
	switch {
	case p == nil:
		return true
	case p.Endless:
		return false
	case p.Signal != 0:
		return c.GetSignal() == p.Signal && c.GetExitCode() == ofSignal+p.Signal
	default:
		return c.GetSignal() == 0 && c.GetExitCode() == p.ExitCode
	}
}

// unexplained says why an end cannot have been; empty where it can.
func (w *world) unexplained(x *run, c *eventsv1.ExecCompleted, ran bool) string {
	killed := c.GetSignal() != 0 && c.GetExitCode() == ofSignal+c.GetSignal() || x.own(c)
	switch c.GetReason() {
	case sandbox.ReasonExited:
		if c.GetSignal() != 0 || !x.own(c) {
			return "its program does not end so"
		}
	case sandbox.ReasonSignaled:
		if x.program != nil && !(x.program.Signal != 0 && x.own(c)) && !w.signalled(x, c.GetSignal()) {
			return "nobody sent it that signal"
		}
		if !killed {
			return "the code is not the signal's"
		}
	case sandbox.ReasonCancelled:
		if x.state.CancelRequested == "" {
			return "nobody asked for its end"
		}
		if x.state.Started() && ran && !killed {
			return "the code is neither its program's nor the signal's"
		}
	case sandbox.ReasonTimedOut:
		limit := time.Duration(x.state.Spec.GetTimeoutMs()) * time.Millisecond //nolint:gosec // a time limit
		// Also by the toolbox's measure: the clocks of those who wrote the events may have been set meanwhile.
		took := max(x.state.EndedAt.Sub(x.state.RequestedAt), time.Duration(c.GetWallTimeUs())*time.Microsecond) //nolint:gosec // a time
		if x.state.Started() && (limit == 0 || took < limit-tick) {
			return "its time was not over"
		}
	case sandbox.ReasonStartFailed:
		if ran {
			return "its program has begun"
		}
		if !slices.Contains([]int32{codeNotStarted, codeNotFound}, c.GetExitCode()) {
			return "that is not the code of a program that cannot be started"
		}
	case sandbox.ReasonSandboxDestroyed:
		if !w.endedBefore(x) {
			return "its sandbox was not being ended"
		}
		if ran && !killed {
			return "the code is neither its program's nor the signal's"
		}
	case sandbox.ReasonSandboxStopped:
		if !w.stoppedBefore(x) {
			return "its sandbox was not being stopped"
		}
		if ran && !killed {
			return "the code is neither its program's nor the signal's"
		}
	case sandbox.ReasonOOMKilled:
		if !killed {
			return "the code is not the signal's"
		}
	default:
		return "there is no such reason"
	}
	return ""
}

// signalled: a fault that was made on purpose sent the programs of its sandbox this signal before it ended.
func (w *world) signalled(x *run, signal int32) bool {
	for _, fault := range w.Faults {
		if fault.Sandbox == x.agg.Sandbox && fault.Signal == signal && !fault.At.Before(x.state.StartedAt) && !fault.At.After(x.state.EndedAt) {
			return true
		}
	}
	return false
}

// endedBefore: the end of its sandbox was decided, or it had failed and what was left of it was removed, before its own end, by the order
// of the log: clocks may be set back.
func (w *world) endedBefore(x *run) bool {
	return w.before(x, func(body proto.Message) bool {
		switch body.(type) {
		case *eventsv1.SandboxDestroying, *eventsv1.SandboxFailed:
			return true
		}
		return false
	})
}

// stoppedBefore: the stop of its sandbox was decided between its request and its end.
func (w *world) stoppedBefore(x *run) bool {
	return w.before(x, func(body proto.Message) bool {
		switch body.(type) {
		case *eventsv1.SandboxStopping, *eventsv1.SandboxStopped:
			return true
		}
		return false
	})
}

// before: such an event of its sandbox stands in the log before the end of an exec.
func (w *world) before(x *run, such func(proto.Message) bool) bool {
	b := w.boxes[x.agg.Sandbox]
	return b != nil && slices.ContainsFunc(b.events, func(e envelope.Recorded) bool {
		return e.Seq < x.state.LastSeq && such(e.Body)
	})
}
