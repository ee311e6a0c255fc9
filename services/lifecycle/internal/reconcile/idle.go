package reconcile

import (
	"context"
	"fmt"

	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/history"
)

// idle ends a sandbox that was not used for its idle timeout. Its own events tell when commands were started and files used; the log of its execs
// is asked too: one that runs is use, and so was the end of the last one.
//
// A command that comes at the same time is recorded as use before it is started, in the same history as the end: one of them is first, and the
// other one finds that.
func (r *Reconciler) idle(ctx context.Context, s sandbox.Sandbox, m history.Meta) error {
	open, last, err := r.execs(ctx, s.Tenant, s.ID)
	if err != nil {
		return fmt.Errorf("ask for its execs: %w", err)
	}
	if open {
		last = m.Time.Add(s.UseGrain(m.Time))
	}
	if last.Add(s.IdleTimeout()).After(m.Time) {
		s, err = history.Record(ctx, r.events, s.Tenant, s.ID, "used", m, func(sandbox.Sandbox) sandbox.Command { return sandbox.Used{At: last} })
		if err != nil || !s.Idle(m.Time) {
			return err
		}
	}
	s, err = history.Record(ctx, r.events, s.Tenant, s.ID, "destroying", m, func(s sandbox.Sandbox) sandbox.Command {
		if !s.Idle(m.Time) {
			return nil
		}
		return sandbox.Destroy{Reason: sandbox.ReasonIdle}
	})
	if err != nil || s.State != sandbox.Destroying {
		return err
	}
	r.log.Info("ending a sandbox that is idle", "tenant", s.Tenant, "sandbox", s.ID, "timeout", s.IdleTimeout())
	return r.role.Teardown(ctx, s, m)
}
