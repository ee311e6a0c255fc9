// Package history takes decisions about one sandbox at a time and records them in the log.
package history

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// Meta is who decides, and because of what.
type Meta struct {
	// Actor as in the command, or service:lifecycle.
	Actor string
	// Cause is the id of the command that led here; empty where nobody asked.
	Cause       string
	Correlation string
	Time        time.Time
}

// Actor is the one behind decisions that nobody asked for.
const Actor = "service:lifecycle"

// EventID is the id of the event that a decision of this kind makes behind seq. Whoever decides the same at the same place
// makes the same id.
func EventID(what, aggregate string, seq uint64) string {
	return ids.Derive(what, aggregate, strconv.FormatUint(seq, 10))
}

// Load is the sandbox as a replica of the log has it: it may lack the end of its history, and one that was requested a moment ago may not
// exist.
func Load(ctx context.Context, log eventlog.Log, tenant, id string) (sandbox.Sandbox, error) {
	return fold(log.Load(ctx, subject.Sandbox(tenant, id)))
}

// Current is the sandbox with all that was recorded before the call.
func Current(ctx context.Context, log eventlog.Log, tenant, id string) (sandbox.Sandbox, error) {
	return fold(eventlog.Current(ctx, log, subject.Sandbox(tenant, id)))
}

// UpTo is the sandbox as of an event at a sequence or later, at least; Current for 0, where no event is known.
func UpTo(ctx context.Context, log eventlog.Log, tenant, id string, seq uint64) (sandbox.Sandbox, error) {
	if seq == 0 {
		return Current(ctx, log, tenant, id)
	}
	return fold(eventlog.LoadUpTo(ctx, log, subject.Sandbox(tenant, id), seq))
}

func fold(h eventlog.History, err error) (sandbox.Sandbox, error) {
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return sandbox.Fold(h)
}

// Record lets choose pick a command for the sandbox's present state, decides and appends, again from the start when somebody
// else was faster. A nil command records nothing. It returns the sandbox behind it all.
func Record(
	ctx context.Context, log eventlog.Log, tenant, id, what string, m Meta, choose func(sandbox.Sandbox) sandbox.Command,
) (sandbox.Sandbox, error) {
	h, err := eventlog.Execute(ctx, log, subject.Sandbox(tenant, id), func(h eventlog.History) ([]envelope.Event, error) {
		s, err := sandbox.Fold(h)
		if err != nil {
			return nil, err
		}
		c := choose(s)
		if c == nil {
			return nil, nil
		}
		bodies, err := sandbox.Decide(s, c)
		if err != nil {
			return nil, err
		}
		return Events(m, EventID(what, id, s.Seq), tenant, bodies...), nil
	})
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return sandbox.Fold(h)
}

// Events puts decided bodies into envelopes under an id, with the cause of m where it has one.
func Events(m Meta, id, tenant string, bodies ...proto.Message) []envelope.Event {
	events := sandbox.Events(sandbox.CommandMeta{
		ID: id, Actor: m.Actor, Correlation: m.Correlation, Time: m.Time, Tenant: tenant,
	}, bodies...)
	for i := range events {
		events[i].Cause = m.Cause
	}
	return events
}

// RecordWorkspace is Record for a command on the sandbox's workspace.
func RecordWorkspace(
	ctx context.Context, log eventlog.Log, tenant, id, what string, m Meta, c sandbox.WorkspaceCommand,
) (sandbox.Workspace, error) {
	h, err := eventlog.Execute(ctx, log, subject.Workspace(tenant, id), func(h eventlog.History) ([]envelope.Event, error) {
		w, err := sandbox.FoldWorkspace(h)
		if err != nil {
			return nil, err
		}
		bodies, err := sandbox.DecideWorkspace(w, c)
		if err != nil {
			return nil, err
		}
		return Events(m, EventID(what, id, w.Seq), tenant, bodies...), nil
	})
	if err != nil {
		return sandbox.Workspace{}, err
	}
	return sandbox.FoldWorkspace(h)
}
