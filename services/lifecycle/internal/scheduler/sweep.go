package scheduler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/sandbox/views"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/history"
)

// settle is how old a place must be before a sweep doubts it: its sandbox may be about to be recorded.
const settle = 10 * time.Minute

// Sweep brings what the scheduler derives from the log back in line with it: places of sandboxes that are over are given back,
// missing ones are taken, and a sandbox whose worker never began is failed behind its start deadline. Its cost grows with the
// number of live sandboxes.
func (s *Scheduler) Sweep(ctx context.Context, live *views.Set) error {
	return errors.Join(s.sweepPlaces(ctx, live), s.sweepLive(ctx, live))
}

func (s *Scheduler) sweepPlaces(ctx context.Context, live *views.Set) error {
	keys, err := s.places.Keys(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, key := range keys {
		holders, err := s.places.Holders(ctx, key)
		if err != nil {
			return err
		}
		for id, h := range holders {
			if v, ok := live.Get(id); ok && v.GetState() != sandbox.Failed {
				continue
			}
			errs = append(errs, s.doubt(ctx, key, id, h))
		}
	}
	return errors.Join(errs...)
}

// doubt gives a place back when the log says that nothing holds it.
func (s *Scheduler) doubt(ctx context.Context, key, id string, h Holder) error {
	sb, err := history.Current(ctx, s.events, h.Tenant, id)
	if err != nil {
		return fmt.Errorf("load the holder of a place: %w", err)
	}
	old := s.now().Sub(time.Unix(h.Since, 0)) > settle
	failed := sb.State == sandbox.Failed && s.now().Sub(sb.EndedAt) > settle
	elsewhere := strings.HasPrefix(key, "worker.") && sb.Exists() && OfWorker(sb.Worker) != key
	if sb.State != sandbox.Destroyed && !failed && !elsewhere && (sb.Exists() || !old) {
		return nil
	}
	s.log.Warn("a place was held by a sandbox that is over", "place", key, "sandbox", id, "state", sb.State)
	return s.places.Free(ctx, key, id)
}

func (s *Scheduler) sweepLive(ctx context.Context, live *views.Set) error {
	var errs []error
	for _, v := range live.All() {
		switch v.GetState() {
		case sandbox.Requested, sandbox.Scheduled:
			errs = append(errs, s.neverBegun(ctx, v))
		case sandbox.Failed, sandbox.Destroying:
			continue
		}
		errs = append(errs, s.restore(ctx, v))
	}
	return errors.Join(errs...)
}

// restore takes the places of a sandbox that lives without them, over the limit too: it exists.
func (s *Scheduler) restore(ctx context.Context, v *commandsv1.SandboxView) error {
	keys := []string{OfWorker(v.GetWorker())}
	if s.cfg.MaxPerTenant > 0 {
		keys = append(keys, OfTenant(v.GetTenantId()))
	}
	for _, key := range keys {
		holders, err := s.places.Holders(ctx, key)
		if err != nil {
			return err
		}
		if _, ok := holders[v.GetSandboxId()]; ok {
			continue
		}
		sb, err := history.Load(ctx, s.events, v.GetTenantId(), v.GetSandboxId())
		if err != nil {
			return err
		}
		if !sb.Exists() || sb.Ending() {
			return nil
		}
		if err := s.places.Take(ctx, key, sb.Tenant, sb.ID, MaxPlaces); err != nil {
			return fmt.Errorf("restore a place of %s: %w", key, err)
		}
	}
	return nil
}

// neverBegun fails a sandbox whose worker is gone before its start. Where the worker lives it does so itself, because only it
// can tell that nothing was started.
func (s *Scheduler) neverBegun(ctx context.Context, v *commandsv1.SandboxView) error {
	late := v.GetCreatedAt().AsTime().Add(s.cfg.StartDeadline)
	if s.now().Before(late) || s.workers.Alive(v.GetWorker(), s.cfg.StartDeadline) {
		return nil
	}
	meta := history.Meta{Actor: history.Actor, Cause: ids.Derive("start-deadline", v.GetSandboxId()), Time: s.now()}
	sb, err := history.Record(ctx, s.events, v.GetTenantId(), v.GetSandboxId(), "failed", meta, func(sb sandbox.Sandbox) sandbox.Command {
		if sb.State != sandbox.Requested && sb.State != sandbox.Scheduled {
			return nil
		}
		return sandbox.Fail{
			At: meta.Time, Reason: fault.ReasonStartDeadline, Phase: "placed",
			Message: fmt.Sprintf("worker %s did not begin within %s and is not running", sb.Worker, s.cfg.StartDeadline),
		}
	})
	if err != nil || sb.State != sandbox.Failed {
		return err
	}
	return s.places.Release(ctx, sb.Tenant, sb.Worker, sb.ID)
}
