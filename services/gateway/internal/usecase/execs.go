package usecase

import (
	"context"
	"math"
	"time"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/output"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// EachExec tells of every exec of a sandbox, as the log has it now: of those that are over in the order of their ends, then of those that are
// not, in no order. An exec has up to 128 KiB: keep of it what is needed. It costs one pass over the sandbox's execs; not_found without the
// sandbox.
func (u *UseCases) EachExec(ctx context.Context, p principal.Principal, sandboxID string, each func(sandbox.Exec)) error {
	return u.eachExec(ctx, p, sandboxID, func(*eventsv1.ExecSpec) bool { return true }, each)
}

// eachExec is EachExec of those whose spec is wanted.
func (u *UseCases) eachExec(ctx context.Context, p principal.Principal, sandboxID string, wanted func(*eventsv1.ExecSpec) bool, each func(sandbox.Exec)) error {
	if err := p.Need(reading); err != nil {
		return err
	}
	s, err := u.show(ctx, p, sandboxID)
	if err != nil {
		return err
	}
	// Those that are over are told of and forgotten, so that what is held is what runs.
	open := map[string]*eventlog.History{}
	var broken error
	tell := func(h *eventlog.History) {
		x, err := sandbox.ShowExec(*h)
		if err != nil {
			broken = err
			return
		}
		each(x)
	}
	err = directget.Each(ctx, u.js, topology.StreamEvents, subject.ExecsOf(s.Tenant, s.ID), 1, func(m directget.Message) error {
		agg, err := subject.ParseEvent(m.Subject)
		if err != nil {
			return nil //nolint:nilerr // no event of ours
		}
		e, err := envelope.Decode(m.Subject, m.Seq, m.Header, m.Data)
		if err != nil {
			return nil //nolint:nilerr // it is none that says what an exec is
		}
		h := open[agg.ID]
		if h == nil {
			if spec := specOf(e); spec == nil || !wanted(spec) {
				return nil
			}
			h = &eventlog.History{Aggregate: agg}
			open[agg.ID] = h
		}
		h.Events = append(h.Events, e)
		switch e.Body.(type) {
		case *eventsv1.ExecCompleted, *eventsv1.ExecLost:
			tell(h)
			delete(open, agg.ID)
		}
		return broken
	})
	for _, h := range open {
		if err == nil && broken == nil {
			tell(h)
		}
	}
	switch {
	case broken != nil:
		return broken
	case err != nil:
		return unreachable(err)
	}
	return nil
}

// specOf is what an event that begins an exec says is run; nil for any other.
func specOf(e envelope.Recorded) *eventsv1.ExecSpec {
	switch b := e.Body.(type) {
	case *eventsv1.ExecRequested:
		return b.GetSpec()
	case *eventsv1.ExecStarted:
		return b.GetSpec()
	}
	return nil
}

// Signal sends a signal, 1 to 64 as Linux numbers them, to the program of an exec that runs, and not to what that has started. It is not
// recorded, and sent once for each call: where the answer is lost it may have come. One that has ended is illegal_state.
func (u *UseCases) Signal(ctx context.Context, p principal.Principal, sandboxID, execID string, number int32) error {
	if err := p.Need(scopes.Execute); err != nil {
		return err
	}
	x, err := u.exec(ctx, p, sandboxID, execID)
	switch {
	case err != nil:
		return err
	case x.Over():
		return fault.New(fault.FailedPrecondition, fault.ReasonIllegalState, "the command has ended")
	case x.Worker == "":
		return notStarted()
	}
	s := sandbox.Sandbox{Tenant: x.Tenant, ID: x.Sandbox, Worker: x.Worker}
	_, err = u.fileCall(ctx, s, &commandsv1.FileCall{Call: &commandsv1.FileCall_Signal{Signal: &commandsv1.SignalCall{ExecId: execID, Signal: number}}})
	if fault.Is(err, fault.ReasonExecNotFound) {
		return notStarted()
	}
	return err
}

// AwaitEnd waits until an exec is over, for as long as most; whether it is the exec says that it returns.
func (u *UseCases) AwaitEnd(ctx context.Context, p principal.Principal, sandboxID, execID string, most time.Duration) (sandbox.Exec, error) {
	wait, stop := context.WithTimeout(ctx, most)
	defer stop()
	if _, err := u.Attach(wait, p, sandboxID, execID, math.MaxUint64-1, unread{}); err != nil && wait.Err() == nil && !fault.Is(err, fault.ReasonCursorExpired) {
		return sandbox.Exec{}, err
	}
	return u.Receipt(ctx, p, sandboxID, execID)
}

// unread waits for an end alone.
type unread struct{}

func (unread) Named(string) error       { return nil }
func (unread) Output(output.Item) error { return nil }
