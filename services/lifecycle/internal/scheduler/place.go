package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// anyProvider is that of a worker which says none.
const anyProvider = "local"

// reasonsMost is of how many workers a placement says why they were not chosen; of the others it says how many there are.
const reasonsMost = 16

// wish is where a caller wants a sandbox; what is empty: anywhere.
type wish struct {
	region, provider, worker string
	// labels are what those of the worker must say.
	labels map[string]string
}

func wishOf(c *commandsv1.CreateSandbox) wish {
	return wish{region: c.GetRegion(), provider: c.GetOnProvider(), worker: c.GetWorker(), labels: c.GetWorkerLabels()}
}

// against is why a worker is not what a tenant wishes for, empty where it is.
func (w wish) against(s *commandsv1.WorkerStatus, tenant string) string {
	provider := s.GetProvider()
	if provider == "" {
		provider = anyProvider
	}
	switch {
	case w.worker != "" && w.worker != s.GetWorker():
		return fmt.Sprintf("not the worker %.64q", w.worker)
	case w.region != "" && w.region != s.GetRegion():
		return fmt.Sprintf("in region %.64q, not %.64q", s.GetRegion(), w.region)
	case w.provider != "" && w.provider != provider:
		return fmt.Sprintf("of provider %.64q, not %.64q", provider, w.provider)
	case s.GetCordoned() != "":
		return "cordoned: " + s.GetCordoned()
	case len(s.GetTenants()) > 0 && !slices.Contains(s.GetTenants(), tenant):
		return "for other tenants"
	}
	for _, k := range slices.Sorted(maps.Keys(w.labels)) {
		if have, ok := s.GetLabels()[k]; !ok || have != w.labels[k] {
			return fmt.Sprintf("its label %.63q is %.63q, not %.63q", k, have, w.labels[k])
		}
	}
	return ""
}

func small(s *commandsv1.WorkerStatus, l *eventsv1.Limits) string {
	switch {
	case l.GetMemoryBytes() > s.GetMemoryBytes():
		return fmt.Sprintf("a sandbox may have %d bytes of memory there, not %d", s.GetMemoryBytes(), l.GetMemoryBytes())
	case uint64(l.GetCpuMillis()) > s.GetCpuMillis():
		return fmt.Sprintf("a sandbox may have %d millicores there, not %d", s.GetCpuMillis(), l.GetCpuMillis())
	}
	return ""
}

// choice collects why workers were not chosen, in the order of their names or of their turn.
type choice struct {
	of  int
	not []string
}

func (c *choice) reject(s *commandsv1.WorkerStatus, why string) {
	c.not = append(c.not, s.GetWorker()+": "+why)
}

// reasons are those against workers, bounded.
func (c *choice) reasons() []string {
	if len(c.not) <= reasonsMost {
		return c.not
	}
	return append(slices.Clone(c.not[:reasonsMost]), fmt.Sprintf("and %d more workers", len(c.not)-reasonsMost))
}

// refused is a refusal with what stands against each worker.
func (c *choice) refused(e *fault.Error) *fault.Error {
	if len(c.not) == 0 {
		return e
	}
	e.Message += " (" + strings.Join(c.reasons(), "; ") + ")"
	return e
}

// place takes the tenant's quota and chooses the worker with the fewest sandboxes among those that fit, of which it takes a place.
func (s *Scheduler) place(
	ctx context.Context, tenant, id string, limits *eventsv1.Limits, workspace uint64, where wish,
) (*eventsv1.Placement, error) {
	fresh, err := s.awaitWorkers(ctx)
	if err != nil {
		return nil, err
	}
	c := &choice{of: len(fresh)}
	var wanted, fit []*commandsv1.WorkerStatus
	for _, w := range fresh {
		if why := where.against(w, tenant); why != "" {
			c.reject(w, why)
			continue
		}
		wanted = append(wanted, w)
		if why := small(w, limits); why != "" {
			c.reject(w, why)
			continue
		}
		fit = append(fit, w)
	}
	switch {
	case len(wanted) == 0:
		return nil, c.refused(fault.Newf(fault.ResourceExhausted, fault.ReasonNoWorker, "none of the %d workers is one that was asked for", c.of).
			WithRetry(5 * time.Second))
	case len(fit) == 0:
		return nil, c.refused(fault.Newf(fault.ResourceExhausted, fault.ReasonNoWorker,
			"none of the %d workers is large enough for %d millicores and %d bytes of memory", c.of, limits.GetCpuMillis(), limits.GetMemoryBytes()))
	}
	quotas, err := s.quotas.Of(ctx, tenant)
	if err != nil {
		return nil, err
	}
	if err := s.places.Quotas.Take(ctx, tenant, id, sizeOf(limits, workspace), quotas); err != nil {
		return nil, err
	}
	placement, err := s.takeOfWorker(ctx, tenant, id, fit, c)
	if err != nil {
		return nil, errors.Join(err, s.places.Quotas.Undo(ctx, tenant, id))
	}
	return placement, err
}

// takeOfWorker takes a place of the worker that has the fewest sandboxes and one free.
func (s *Scheduler) takeOfWorker(ctx context.Context, tenant, id string, fit []*commandsv1.WorkerStatus, c *choice) (*eventsv1.Placement, error) {
	type candidate struct {
		*commandsv1.WorkerStatus
		used int
	}
	candidates := make([]candidate, 0, len(fit))
	for _, w := range fit {
		holders, err := s.places.Holders(ctx, OfWorker(w.GetWorker()))
		if err != nil {
			return nil, err
		}
		if _, ok := holders[id]; ok {
			// An earlier attempt at this very create chose it.
			return placement(w, len(holders), len(fit), c), nil
		}
		candidates = append(candidates, candidate{w, len(holders)})
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int { return a.used - b.used })
	total := 0
	for i, one := range candidates {
		err := s.places.Take(ctx, OfWorker(one.GetWorker()), tenant, id, int(one.GetMaxSandboxes()))
		var full *FullError
		if errors.As(err, &full) {
			total += full.Limit
			c.reject(one.WorkerStatus, "all its places are taken")
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, other := range candidates[i+1:] {
			c.reject(other.WorkerStatus, fmt.Sprintf("has %d sandboxes", other.used))
		}
		return placement(one.WorkerStatus, one.used+1, len(fit), c), nil
	}
	// Whose sandboxes fill the workers is not for a tenant to know.
	return nil, c.refused(fault.Newf(fault.ResourceExhausted, fault.ReasonQuota,
		"all %d places on %d workers are taken (max_sandboxes); try again when a sandbox has ended", total, len(fit)).WithRetry(10 * time.Second))
}

func placement(w *commandsv1.WorkerStatus, used, fit int, c *choice) *eventsv1.Placement {
	return &eventsv1.Placement{
		Worker: w.GetWorker(), Driver: w.GetDriver(), Region: w.GetRegion(),
		Reasons: append([]string{
			fmt.Sprintf("%d of %d workers fit", fit, c.of),
			fmt.Sprintf("fewest sandboxes: %d of %d places with this one", used, w.GetMaxSandboxes()),
		}, c.reasons()...),
	}
}
