package runner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/services/exec/internal/relay"
	"github.com/sandtrail/sandtrail/toolbox/client"
)

// follow relays the output until the end and records it. fresh: nothing is stored yet, so that nothing need be read first.
func (x *run) follow(ctx context.Context, fresh bool) error {
	down := x.outage()
	var sealed time.Time
	x.out.Limit, x.out.Passed = x.state.Spec.GetOutputLimitBytes(), x.passed(ctx)
	if x.out.Limit == 0 {
		x.out.Limit = x.r.cfg.OutputLimit
	}
	var pos relay.Position
	for {
		if !fresh {
			err := x.r.retry(ctx, "read position", x, func() (err error) {
				pos, err = x.r.deps.Relay.Position(ctx, x.out)
				return transient(err)
			})
			if err != nil {
				return err
			}
		}
		fresh = false
		var end *toolboxv1.End
		var err error
		pos, end, err = x.r.deps.Relay.Run(ctx, x.out, pos, x.attach)
		if err != nil && ctx.Err() == nil {
			x.r.log.Warn("the output of a command is taken up again", "exec", x.agg.ID, "chunk", pos.Chunk, "error", err)
		}
		var refused *client.Error
		switch {
		case err == nil:
			return x.ended(ctx, end, pos)
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, relay.ErrFenced), errors.Is(err, relay.ErrSealed):
			if errors.Is(err, relay.ErrSealed) && sealed.IsZero() {
				sealed = time.Now()
			}
			over, err := x.standBack(ctx)
			if over || err != nil {
				return err
			}
			if !sealed.IsZero() && time.Since(sealed) > x.r.cfg.SealWait {
				// Whoever sealed it has died before saying why.
				return x.lose(ctx, fault.ReasonExecLost, "the output was closed before the end of the command was seen")
			}
		case errors.As(err, &refused) && refused.Code == string(fault.NotFound):
			return x.lose(ctx, fault.ReasonExecLost, "the toolbox does not know the command any more")
		default:
			if over, err := down.check(ctx, err); over || err != nil {
				return err
			}
		}
	}
}

// transient makes an error of reading OUT one that retry tries again.
func transient(err error) error {
	if err == nil {
		return nil
	}
	return fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "output cannot be read").Because(err)
}

func (x *run) attach(ctx context.Context, stdout, stderr uint64) (relay.Stream, error) {
	return x.r.deps.Toolbox(x.agg.Sandbox).Attach(ctx, &toolboxv1.Attach{ExecId: x.agg.ID, StdoutOffset: stdout, StderrOffset: stderr})
}

// standBack leaves the exec to the relay that was faster for a moment; it may have recorded the end then.
func (x *run) standBack(ctx context.Context) (bool, error) {
	wait := x.r.cfg.FenceWait
	if err := pause.For(ctx, wait/2+rand.N(wait)); err != nil {
		return false, err
	}
	err := x.reload(ctx)
	return x.state.Over(), err
}

// ended records what the toolbox observed.
func (x *run) ended(ctx context.Context, end *toolboxv1.End, pos relay.Position) error {
	if end.GetReason() == string(fault.ReasonSandboxLost) || end.GetReason() == "" {
		return x.finish(ctx, sandbox.LoseExec{Lost: &eventsv1.ExecLost{
			Reason: string(fault.ReasonSandboxLost), Message: end.GetMessage(), LastChunk: pos.Chunk,
			StdoutBytes: pos.Stream(relay.Stdout).End, StderrBytes: pos.Stream(relay.Stderr).End,
			Usage: end.GetUsage(), WallTimeUs: end.GetWallTimeUs(),
		}})
	}
	code := end.GetExitCode()
	if code == 0 && end.GetSignal() > 0 {
		code = 128 + end.GetSignal()
	}
	done := &eventsv1.ExecCompleted{
		ExitCode: code, Signal: end.GetSignal(), WallTimeUs: end.GetWallTimeUs(), Reason: end.GetReason(), Message: end.GetMessage(),
		Usage: end.GetUsage(), UsageMethod: end.GetUsageMethod(), LastChunk: pos.Chunk,
		Stdout: pos.Output(relay.Stdout), Stderr: pos.Output(relay.Stderr),
	}
	if x.stopped(done) {
		done.Reason = sandbox.ReasonOutputLimit
	}
	unrecorded := join(x.unrecorded("stdout", done.GetStdout()), x.unrecorded("stderr", done.GetStderr()))
	done.Message = join(done.GetMessage(), unrecorded)
	done.Limits = x.limitsMet(end, done, unrecorded)
	return x.finish(ctx, sandbox.CompleteExec{Completed: done})
}

// passed ends the program of a stream over its limit where that was asked for.
func (x *run) passed(ctx context.Context) func(uint32) {
	if !x.state.Spec.GetStopAtOutputLimit() {
		return nil
	}
	return func(uint32) {
		go func() {
			if err := x.r.kill(ctx, x.agg, sandbox.ReasonCancelled); err != nil && ctx.Err() == nil {
				x.r.log.Warn("a command over its limit of output is not ended yet", "exec", x.agg.ID, "error", err)
			}
		}()
	}
}

// stopped reports whether the limit of output ended the program. The toolbox calls it cancelled; nobody else asked for that.
func (x *run) stopped(end *eventsv1.ExecCompleted) bool {
	over := max(end.GetStdout().GetBytes(), end.GetStderr().GetBytes()) > x.out.Limit
	return over && x.state.Spec.GetStopAtOutputLimit() && end.GetReason() == sandbox.ReasonCancelled && x.state.CancelRequested == ""
}

// limitsMet are those that the toolbox saw, but for output: what is not recorded is decided here.
func (x *run) limitsMet(end *toolboxv1.End, done *eventsv1.ExecCompleted, unrecorded string) []*commonv1.LimitHit {
	const output = "output"
	hits := slices.DeleteFunc(slices.Clone(end.GetLimits()), func(hit *commonv1.LimitHit) bool { return hit.GetLimit() == output })
	if dropped := done.GetStdout().GetDroppedBytes() + done.GetStderr().GetDroppedBytes(); dropped > 0 {
		hits = append(hits, &commonv1.LimitHit{Limit: output, Value: x.out.Limit, Amount: dropped, Message: unrecorded, Source: "host"})
	}
	return hits
}

// unrecorded says for people what of a stream is missing; empty where nothing is.
func (x *run) unrecorded(stream string, o *eventsv1.Output) string {
	switch {
	case o.GetDroppedBytes() == 0:
		return ""
	case o.GetBytes() > x.out.Limit:
		return fmt.Sprintf("%d of %d bytes of %s are not recorded, it passed its limit of %d", o.GetDroppedBytes(), o.GetBytes(), stream, x.out.Limit)
	default:
		return fmt.Sprintf("%d of %d bytes of %s are not recorded, it was written faster than it could be read", o.GetDroppedBytes(), o.GetBytes(), stream)
	}
}

func join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "; ")
}

// lose records that the end cannot be seen any more, with what is stored of the output.
func (x *run) lose(ctx context.Context, reason fault.Reason, message string) error {
	var pos relay.Position
	err := x.r.retry(ctx, "seal the output", x, func() (err error) {
		pos, err = x.r.deps.Relay.Seal(ctx, x.out)
		return transient(err)
	})
	if err != nil {
		return err
	}
	x.mark(x.begun)
	return x.finish(ctx, sandbox.LoseExec{Lost: &eventsv1.ExecLost{
		Reason: string(reason), Message: message, LastChunk: pos.Chunk,
		StdoutBytes: pos.Stream(relay.Stdout).End, StderrBytes: pos.Stream(relay.Stderr).End,
		WallTimeUs: uint64(max(0, time.Since(x.state.StartedAt).Microseconds())),
	}})
}

// pendingEvery is how long recording an end may take before readers are told, and told again.
const pendingEvery = time.Second

// pending tells whoever reads the exec that its end was seen and is not recorded yet, for as long as that takes. Call stop once.
func (x *run) pending() (stop func()) {
	over := make(chan struct{})
	first := time.AfterFunc(pendingEvery, func() {
		tick := time.NewTicker(pendingEvery)
		defer tick.Stop()
		for {
			// Nobody waits for it: what cannot be told is found in the log later.
			_ = x.r.deps.NC.Publish(subject.Readers(x.agg.Tenant, x.agg.Sandbox, x.agg.ID), []byte(sandbox.RecordPending))
			select {
			case <-tick.C:
			case <-over:
				return
			}
		}
	})
	return func() { first.Stop(); close(over) }
}

// finish records the end under the exec's own end command, so that whoever records it, and however often, makes one event and
// one usage id. Then the toolbox may drop its copy of the output.
func (x *run) finish(ctx context.Context, c sandbox.ExecCommand) error {
	m := sandbox.CommandMeta{
		ID: sandbox.EndCommand(x.agg.ID), Actor: actor, Correlation: x.correlation, Time: time.Now(), Tenant: x.agg.Tenant,
	}
	recorded := func() {}
	if _, seen := c.(sandbox.CompleteExec); seen {
		recorded = x.pending()
	}
	_, err := x.record(ctx, m, 0, c)
	recorded()
	if err != nil {
		return wrap("record the end", err)
	}
	reason := "lost"
	if x.state.Completed != nil {
		reason = x.state.Completed.GetReason()
	}
	x.r.metrics.ended.WithLabelValues(reason).Inc()
	if x.state.Started() {
		fctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		if _, err := x.r.deps.Toolbox(x.agg.Sandbox).Forget(fctx, &toolboxv1.Forget{ExecId: x.agg.ID}); err != nil {
			x.r.log.Debug("toolbox keeps the output", "exec", x.agg.ID, "error", err)
		}
	}
	return nil
}
