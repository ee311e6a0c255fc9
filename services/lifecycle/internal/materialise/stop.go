package materialise

import (
	"context"
	"fmt"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/history"
)

// Halt ends a sandbox that is stopping and keeps its files; the caller holds it in Busy. While it cannot be ended it stays stopping and the
// command is repeated; stopped is recorded only once the driver has its files and nothing runs any more.
func (r *Role) Halt(ctx context.Context, s sandbox.Sandbox, m history.Meta) error {
	if s.State != sandbox.Stopping {
		return nil
	}
	used, err := r.stop(ctx, s)
	switch {
	case fault.Is(err, fault.ReasonSandboxLost):
		r.log.Warn("sandbox lost while it was stopping", "tenant", s.Tenant, "sandbox", s.ID, "correlation", m.Correlation, "error", err)
		return r.Fail(ctx, s, m, fault.ReasonSandboxLost, sandbox.Stopping, fault.From(err).Message)
	case err != nil:
		r.log.Warn("sandbox cannot be stopped yet", "tenant", s.Tenant, "sandbox", s.ID, "correlation", m.Correlation, "error", err)
		return fmt.Errorf("stop sandbox %s: %w", s.ID, err)
	}
	// Before the fact is recorded, so that whoever has seen it stopped finds the room.
	if err := r.places.Rest(ctx, s.Tenant, r.cfg.Name, s.ID); err != nil {
		return err
	}
	s, err = r.record(ctx, s, "stopped", m, func(s sandbox.Sandbox, at time.Time) sandbox.Command {
		if s.State != sandbox.Stopping {
			return nil
		}
		return sandbox.MarkStopped{At: at, Usage: Metrics(used)}
	})
	if err != nil {
		return err
	}
	if s.State == sandbox.Destroying {
		return r.teardown(ctx, s, m)
	}
	r.log.Info("sandbox stopped", "tenant", s.Tenant, "sandbox", s.ID)
	return nil
}

func (r *Role) stop(ctx context.Context, s sandbox.Sandbox) (runtime.Usage, error) {
	stopper, ok := r.driver.(runtime.Stopper)
	if !ok {
		// The scheduler asks no such worker; another driver may have been opened since.
		return runtime.Usage{}, fault.New(fault.FailedPrecondition, fault.ReasonSandboxLost, "this worker keeps no sandbox that is stopped")
	}
	end, cancel := context.WithTimeout(ctx, r.cfg.EndTimeout)
	defer cancel()
	return stopper.Stop(end, s.ID)
}

// giveUp leaves a sandbox stopped whose start came to nothing. What its driver has made of it is removed, its files stay.
func (r *Role) giveUp(ctx context.Context, s sandbox.Sandbox, m history.Meta, reason fault.Reason, message string) error {
	_, err := r.stop(ctx, s)
	if fault.Is(err, fault.ReasonSandboxLost) {
		return r.failed(ctx, s, m, fault.ReasonSandboxLost, sandbox.Starting, fault.From(err).Message, nil)
	}
	if err != nil {
		return fmt.Errorf("leave sandbox %s stopped: %w", s.ID, err)
	}
	if err := r.places.Rest(ctx, s.Tenant, r.cfg.Name, s.ID); err != nil {
		return err
	}
	s, err = r.record(ctx, s, "given-up", m, func(sandbox.Sandbox, time.Time) sandbox.Command {
		return sandbox.GiveUp{Reason: reason, Message: message}
	})
	if err != nil {
		return err
	}
	if s.State == sandbox.Destroying {
		return r.teardown(ctx, s, m)
	}
	return nil
}

// note is what a sandbox that is to be started again was made with: its environment, sealed.
func (r *Role) note(ctx context.Context, s sandbox.Sandbox, sealedEnv []byte) ([]byte, error) {
	stopper, ok := r.driver.(runtime.Stopper)
	if !ok || !s.Restarting() || len(sealedEnv) > 0 {
		return sealedEnv, nil
	}
	return stopper.Note(ctx, s.ID)
}
