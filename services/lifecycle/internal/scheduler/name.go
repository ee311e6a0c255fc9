package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/history"
)

// named appends the request of a sandbox and the reservation of its name as one: there is no moment at which a process could die
// and leave a name without a sandbox, or the other way round. It keeps the rules of eventlog.Execute.
func (s *Scheduler) named(
	ctx context.Context, cmd *commandsv1.SandboxCommand, name string, agg subject.Aggregate, decide func(eventlog.History) ([]envelope.Event, error),
) (eventlog.History, error) {
	for range eventlog.MaxAttempts {
		h, err := eventlog.Current(ctx, s.events, agg)
		if err != nil {
			return h, err
		}
		events, err := decide(h)
		if err != nil || len(events) == 0 {
			return h, err
		}
		entries := []eventlog.Entry{{Aggregate: agg, After: h.Tail(), Events: events}}
		reservation, err := s.reserve(ctx, cmd, name)
		if err != nil {
			return h, err
		}
		if reservation != nil {
			entries = append(entries, *reservation)
		}
		recorded, err := s.events.AppendBatch(ctx, entries...)
		switch {
		case err == nil && recorded[0].Found:
			return eventlog.Current(ctx, s.events, agg)
		case err == nil:
			for _, e := range recorded {
				if e.Subject == agg.Subject() {
					h.Events = append(h.Events, e)
				}
			}
			return h, nil
		case !errors.Is(err, eventlog.ErrConflict):
			return h, err
		}
	}
	return eventlog.History{}, fault.New(fault.Conflict, fault.ReasonConflict, "too many changes at the same time; try again").
		Because(eventlog.ErrConflict).WithRetry(time.Second)
}

// reserve is what gives the name to the command's sandbox; nil where it has it. A name whose sandbox was destroyed is free, also where a
// worker of an earlier version, which knew no names, did not say so.
func (s *Scheduler) reserve(ctx context.Context, cmd *commandsv1.SandboxCommand, name string) (*eventlog.Entry, error) {
	agg := subject.Name(cmd.GetTenantId(), sandbox.NameID(name))
	h, err := eventlog.Last(ctx, s.events, agg)
	if err != nil {
		return nil, err
	}
	state, err := sandbox.FoldName(h)
	if err != nil {
		return nil, err
	}
	reserve := sandbox.ReserveName{Name: name, Sandbox: cmd.GetSandboxId()}
	if state.Sandbox != "" && state.Sandbox != reserve.Sandbox {
		holder, err := history.Current(ctx, s.events, cmd.GetTenantId(), state.Sandbox)
		if err != nil {
			return nil, err
		}
		if holder.State == sandbox.Destroyed {
			reserve.Gone = state.Sandbox
		}
	}
	bodies, err := sandbox.DecideName(state, reserve)
	if err != nil || len(bodies) == 0 {
		return nil, err
	}
	events := history.Events(s.meta(cmd), history.EventID("name-reserved", cmd.GetSandboxId(), state.Seq), cmd.GetTenantId(), bodies...)
	return &eventlog.Entry{Aggregate: agg, After: h.Tail(), Events: events}, nil
}
