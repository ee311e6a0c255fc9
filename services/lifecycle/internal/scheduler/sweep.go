package scheduler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/quota"
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
	return errors.Join(s.sweepPlaces(ctx, live), s.sweepQuotas(ctx, live), s.sweepLive(ctx, live))
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
			errs = append(errs, s.doubt(ctx, live, claim{
				what: key, tenant: h.Tenant, sandbox: id, since: h.Since, place: true,
				elsewhere: func(worker string) bool { return strings.HasPrefix(key, "worker.") && OfWorker(worker) != key },
				free:      func() error { return s.places.Free(ctx, key, id) },
			}))
		}
	}
	return errors.Join(errs...)
}

func (s *Scheduler) sweepQuotas(ctx context.Context, live *views.Set) error {
	tenants, err := s.places.Quotas.Tenants(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, tenant := range tenants {
		holders, err := s.places.Quotas.Holders(ctx, tenant)
		if err != nil {
			return err
		}
		for id, h := range holders {
			errs = append(errs, s.doubt(ctx, live, claim{
				what: "quota of " + tenant, tenant: tenant, sandbox: id, since: h.Since,
				elsewhere: func(string) bool { return false },
				free:      func() error { return s.places.Quotas.Free(ctx, tenant, id) },
			}))
		}
	}
	return errors.Join(errs...)
}

// claim is what a sandbox takes up in one entry.
type claim struct {
	what, tenant, sandbox string
	since                 int64
	// place: it is one of a worker, which a stopped sandbox has not.
	place bool
	// elsewhere reports whether that is wrong for a sandbox of a worker; free gives it back.
	elsewhere func(worker string) bool
	free      func() error
}

// doubt gives back what a sandbox takes up when the log says that nothing holds it.
func (s *Scheduler) doubt(ctx context.Context, live *views.Set, c claim) error {
	if v, ok := live.Get(c.sandbox); ok && v.GetState() != sandbox.Failed && (!c.place || v.GetState() != sandbox.Stopped) {
		return nil
	}
	sb, err := history.Current(ctx, s.events, c.tenant, c.sandbox)
	if err != nil {
		return fmt.Errorf("load the holder of a place: %w", err)
	}
	old := s.now().Sub(time.Unix(c.since, 0)) > settle
	failed := sb.State == sandbox.Failed && s.now().Sub(sb.EndedAt) > settle
	resting := c.place && old && sb.State == sandbox.Stopped
	if sb.State != sandbox.Destroyed && !failed && !resting && (!sb.Exists() || !c.elsewhere(sb.Worker)) && (sb.Exists() || !old) {
		return nil
	}
	s.log.Warn("a place was held by a sandbox that is over", "place", c.what, "sandbox", c.sandbox, "state", sb.State)
	return c.free()
}

func (s *Scheduler) sweepLive(ctx context.Context, live *views.Set) error {
	var errs []error
	taken := glance{places: map[string]map[string]Holder{}, quotas: map[string]map[string]quota.Holder{}}
	for _, v := range live.All() {
		switch v.GetState() {
		case sandbox.Requested, sandbox.Scheduled:
			errs = append(errs, s.neverBegun(ctx, v))
		case sandbox.Failed, sandbox.Destroying, sandbox.Stopping:
			continue
		}
		errs = append(errs, s.restore(ctx, taken, v))
	}
	return errors.Join(errs...)
}

// glance is what one sweep has seen of who takes up what, so that it reads each entry once.
type glance struct {
	places map[string]map[string]Holder
	quotas map[string]map[string]quota.Holder
}

// has reports whether a sandbox has its worker's place and is counted for its tenant.
func (g glance) has(ctx context.Context, p *Places, tenant, worker, id string) (placed, counted bool, err error) {
	if g.places[worker] == nil {
		if g.places[worker], err = p.Holders(ctx, OfWorker(worker)); err != nil {
			return false, false, err
		}
	}
	if g.quotas[tenant] == nil {
		if g.quotas[tenant], err = p.Quotas.Holders(ctx, tenant); err != nil {
			return false, false, err
		}
	}
	_, placed = g.places[worker][id]
	_, counted = g.quotas[tenant][id]
	return placed, counted, nil
}

// restore takes what a sandbox takes up that lives without it, over the limit too: it exists.
func (s *Scheduler) restore(ctx context.Context, taken glance, v *commandsv1.SandboxView) error {
	placed, counted, err := taken.has(ctx, s.places, v.GetTenantId(), v.GetWorker(), v.GetSandboxId())
	resting := v.GetState() == sandbox.Stopped
	if resting && counted && err == nil {
		return s.fallAsleep(ctx, v, taken.quotas[v.GetTenantId()][v.GetSandboxId()])
	}
	if err != nil || placed && counted {
		return err
	}
	sb, err := history.Load(ctx, s.events, v.GetTenantId(), v.GetSandboxId())
	if err != nil || !sb.Exists() || sb.Ending() || sb.State == sandbox.Stopping {
		return err
	}
	size := sizeOf(sb.Limits, sb.Workspace.GetSizeBytes())
	if sb.State == sandbox.Stopped {
		size.CPUMillis, size.MemoryBytes = 0, 0
		return s.places.Quotas.Restore(ctx, sb.Tenant, sb.ID, size)
	}
	if !placed {
		if err := s.places.Take(ctx, OfWorker(v.GetWorker()), sb.Tenant, sb.ID, MaxPlaces); err != nil {
			return fmt.Errorf("restore a place of %s: %w", v.GetWorker(), err)
		}
	}
	return s.places.Quotas.Restore(ctx, sb.Tenant, sb.ID, size)
}

// fallAsleep counts no CPU and no memory of a stopped sandbox that was counted with them for a start that was never recorded.
func (s *Scheduler) fallAsleep(ctx context.Context, v *commandsv1.SandboxView, h quota.Holder) error {
	if h.CPU == 0 && h.Memory == 0 || s.now().Sub(time.Unix(h.Since, 0)) <= settle {
		return nil
	}
	sb, err := history.Current(ctx, s.events, v.GetTenantId(), v.GetSandboxId())
	if err != nil || sb.State != sandbox.Stopped {
		return err
	}
	return s.places.Quotas.RestOf(ctx, sb.Tenant, sb.ID, h)
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
