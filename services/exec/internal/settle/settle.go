// Package settle ends the execs of sandboxes that have ended or were stopped: nobody waits for a command whose sandbox is gone.
package settle

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/openexecs"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/exec/internal/relay"
)

const actor = "service:exec"

// Settler settles execs. The worker that relays an exec may have seen its end: it has Grace to record it, and only then the
// exec counts as lost.
type Settler struct {
	JS    jetstream.JetStream
	Log   eventlog.Log
	Relay *relay.Relay
	// Grace is 3 s by default.
	Grace  time.Duration
	Logger *slog.Logger
}

// Handle takes one event of a sandbox. It may be repeated. Destroying is left to the worker, whose toolbox reports the real end
// of each program while it shuts down; the destroyed that follows comes here again.
func (s *Settler) Handle(ctx context.Context, e envelope.Recorded) error {
	var reason fault.Reason
	var message string
	switch e.Body.(type) {
	case *eventsv1.SandboxDestroyed:
		reason, message = fault.ReasonSandboxDestroyed, "the sandbox was destroyed and the end of the command was not seen"
	case *eventsv1.SandboxFailed:
		reason, message = fault.ReasonSandboxLost, "the sandbox ended and the end of the command was not seen"
	case *eventsv1.SandboxStopped:
		reason, message = fault.ReasonSandboxStopped, "the sandbox was stopped and the end of the command was not seen"
	default:
		return nil
	}
	box, err := subject.ParseEvent(e.Subject)
	if err != nil {
		return err
	}
	open, err := s.open(ctx, box)
	if err != nil || len(open) == 0 {
		return err
	}
	for _, agg := range open {
		if reason == fault.ReasonSandboxStopped {
			later, err := s.later(ctx, agg, e.Seq)
			if err != nil {
				return err
			}
			if later {
				continue
			}
		}
		if err := s.settle(ctx, agg, e, reason, message); err != nil {
			return fmt.Errorf("settle exec %s: %w", agg.ID, err)
		}
	}
	return nil
}

// later reports whether an exec began behind an event: its sandbox was started again.
func (s *Settler) later(ctx context.Context, agg subject.Aggregate, seq uint64) (bool, error) {
	h, err := eventlog.Current(ctx, s.Log, agg)
	if err != nil {
		return false, err
	}
	x, err := sandbox.FoldExec(h)
	return x.FirstSeq > seq, err
}

// open gives the execs that are still open after the grace.
func (s *Settler) open(ctx context.Context, box subject.Aggregate) ([]subject.Aggregate, error) {
	grace := s.Grace
	if grace <= 0 {
		grace = 3 * time.Second
	}
	end := time.NewTimer(grace)
	defer end.Stop()
	tick := time.NewTicker(max(grace/20, 10*time.Millisecond))
	defer tick.Stop()
	for last := false; ; {
		open, err := openexecs.Of(ctx, s.JS, box.Tenant, box.ID)
		if err != nil || len(open) == 0 || last {
			return open, err
		}
		select {
		case <-tick.C:
		case <-end.C:
			last = true
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *Settler) settle(ctx context.Context, agg subject.Aggregate, cause envelope.Recorded, reason fault.Reason, message string) error {
	pos, err := s.Relay.Seal(ctx, relay.Exec{ID: agg.ID, Subject: subject.Output(agg.Tenant, agg.Sandbox, agg.ID)})
	if err != nil {
		return err
	}
	now := time.Now()
	h, err := eventlog.Execute(ctx, s.Log, agg, func(h eventlog.History) ([]envelope.Event, error) {
		x, err := sandbox.FoldExec(h)
		if err != nil {
			return nil, err
		}
		bodies, err := sandbox.DecideExec(x, end(x, pos, now, reason, message))
		if err != nil {
			return nil, err
		}
		m := sandbox.CommandMeta{
			ID: sandbox.EndCommand(agg.ID), Actor: actor, Correlation: cause.Correlation, Time: now, Tenant: agg.Tenant,
		}
		return sandbox.Events(m, bodies...), nil
	})
	if err == nil && s.Logger != nil {
		s.Logger.InfoContext(ctx, "exec settled", "exec", agg.ID, "sandbox", agg.Sandbox, "reason", reason, "sequence", h.Tail().Seq)
	}
	return err
}

// end is what is known of an exec whose sandbox is gone: one that never started never ran, of one that ran the end is lost.
func end(x sandbox.Exec, pos relay.Position, now time.Time, reason fault.Reason, message string) sandbox.ExecCommand {
	if !x.Started() {
		why, text := sandbox.ReasonSandboxDestroyed, "the sandbox was destroyed before the command was started"
		switch reason {
		case fault.ReasonSandboxDestroyed:
		case fault.ReasonSandboxStopped:
			why, text = sandbox.ReasonSandboxStopped, "the sandbox was stopped before the command was started"
		default:
			why, text = sandbox.ReasonStartFailed, "the sandbox failed before the command was started"
		}
		return sandbox.CompleteExec{Completed: &eventsv1.ExecCompleted{
			ExitCode: 126, Reason: why, Message: text, Stdout: &eventsv1.Output{}, Stderr: &eventsv1.Output{},
		}}
	}
	return sandbox.LoseExec{Lost: &eventsv1.ExecLost{
		Reason: string(reason), Message: message, LastChunk: pos.Chunk,
		StdoutBytes: pos.Stream(relay.Stdout).End, StderrBytes: pos.Stream(relay.Stderr).End,
		WallTimeUs: uint64(max(0, now.Sub(x.StartedAt).Microseconds())),
	}}
}
