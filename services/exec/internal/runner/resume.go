package runner

import (
	"context"
	"errors"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	"github.com/sandtrail/sandtrail/services/exec/internal/openexecs"
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
		if err := r.resumeSandbox(ctx, id); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			r.log.Error("execs of a sandbox are not resumed", "sandbox", id, "error", err)
		}
	}
	return nil
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
		h, err := r.deps.Log.Load(ctx, agg)
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
			// Its trace goes on where the event that began it left off.
			go x.supervise(telemetry.Continue(context.WithoutCancel(ctx), h.Events[0].Meta), nil)
		}
	}
	return nil
}
