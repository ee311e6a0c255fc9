package runner

import (
	"context"
	"errors"
	"time"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/openexecs"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/telemetry"
)

// Resume goes on with every exec that the log has as running in the sandboxes of this worker. One that waits for its sandbox
// comes back with its command instead. Execs of sandboxes that left no toolbox here are settled when their sandbox's end is
// recorded.
func (r *Runner) Resume(ctx context.Context) error {
	boxes, err := r.deps.Sandboxes(ctx)
	if err != nil {
		return wrap("list sandboxes", err)
	}
	for _, id := range boxes {
		if err := r.resumeUntil(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// resumeUntil tries until the execs of a sandbox are resumed or ctx ends: nobody else would ever look for their ends while the sandbox
// lives. What the log holds and cannot be read does not keep the others waiting.
func (r *Runner) resumeUntil(ctx context.Context, id string) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := r.resumeSandbox(ctx, id)
		var unreadable *fault.Error
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &unreadable) && unreadable.Code == fault.Internal:
			r.log.ErrorContext(ctx, "execs of a sandbox are not resumed", "sandbox", id, "error", err)
			return nil
		}
		r.log.WarnContext(ctx, "execs of a sandbox are not resumed yet", "sandbox", id, "error", err)
		if err := pause.For(ctx, wait); err != nil {
			return err
		}
	}
}

func (r *Runner) resumeSandbox(ctx context.Context, id string) error {
	box, err := r.deps.Log.Find(ctx, subject.AnyTenantSandbox(id))
	if err != nil {
		if errors.Is(err, ctx.Err()) || fault.CodeOf(err) != fault.NotFound {
			return err
		}
		return nil
	}
	open, err := openexecs.Of(ctx, r.deps.JS, box.Tenant, box.ID)
	if err != nil {
		return err
	}
	for _, agg := range open {
		h, err := eventlog.Current(ctx, r.deps.Log, agg)
		if err != nil {
			return err
		}
		state, err := sandbox.FoldExec(h)
		if err != nil {
			r.log.Error("exec cannot be resumed", "exec", agg.ID, "error", err)
			continue
		}
		if state.State != sandbox.ExecRunning || state.Worker != r.cfg.Worker {
			continue
		}
		x, fresh, err := r.open(agg, state.CommandID, true)
		if err != nil {
			return err
		}
		if fresh {
			if r.deps.Shares != nil {
				r.deps.Shares.Add(agg.Tenant)
				x.free = func() { r.deps.Shares.Free(agg.Tenant) }
			}
			// Its trace goes on where the event that began it left off.
			go x.supervise(telemetry.Continue(context.WithoutCancel(ctx), h.Events[0].Meta), nil)
		}
	}
	return nil
}
