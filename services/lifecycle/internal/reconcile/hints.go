package reconcile

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
)

const (
	// hintsAtOnce bounds the sandboxes that are looked at because something of them has changed. It is more than parallel, because
	// a death must stand in the log soon, also beside many whose remains are slow to go.
	hintsAtOnce = 64
	// maxHints bounds what is kept to be looked at; what comes beyond is left to the next pass.
	maxHints = 10_000
	// hintAgain is how soon a sandbox is looked at again that a command has in hand, or that the views do not show as up yet; each
	// further wait is twice as long. hintTries is how often: what takes longer than some 15 s is left to the pass.
	hintAgain = 250 * time.Millisecond
	hintTries = 6
)

// hints are the sandboxes of which something has changed, each once, with the number of looks so far.
type hints struct {
	mu   sync.Mutex
	ids  map[string]int
	rung chan struct{}
}

func newHints() *hints { return &hints{ids: map[string]int{}, rung: make(chan struct{}, 1)} }

func (h *hints) add(id string, tries int) {
	h.mu.Lock()
	if had, ok := h.ids[id]; ok || len(h.ids) < maxHints {
		// A new change starts the count anew.
		if !ok || tries < had {
			h.ids[id] = tries
		}
	}
	h.mu.Unlock()
	select {
	case h.rung <- struct{}{}:
	default:
	}
}

func (h *hints) take() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := maps.Clone(h.ids)
	clear(h.ids)
	return all
}

// Notify says that something of a sandbox may have changed on this worker. It never blocks. A process that does not reconcile keeps
// nothing: whoever begins to makes a pass first.
func (r *Reconciler) Notify(id string) {
	if r.leads.Load() {
		r.hints.add(id, 0)
	}
}

// follow looks at each sandbox soon after something of it has changed, until ctx ends.
func (r *Reconciler) follow(ctx context.Context) {
	var g errgroup.Group
	g.SetLimit(hintsAtOnce)
	defer func() { _ = g.Wait() }() // no member returns an error
	for {
		select {
		case <-r.hints.rung:
		case <-ctx.Done():
			return
		}
		all := r.hints.take()
		for _, id := range slices.Sorted(maps.Keys(all)) {
			g.Go(func() error {
				again, err := r.changed(ctx, id)
				switch {
				case ctx.Err() != nil:
				case err != nil:
					r.log.Warn("a change could not be followed", "sandbox", id, "error", err)
				case again && all[id] < hintTries:
					time.AfterFunc(hintAgain<<all[id], func() { r.hints.add(id, all[id]+1) })
				}
				return nil
			})
		}
	}
}

// changed looks at one sandbox. again: it cannot be told yet. What no view ever knows is left to the pass.
func (r *Reconciler) changed(ctx context.Context, id string) (again bool, err error) {
	v, ok := r.live.Get(id)
	switch {
	case !ok:
		return true, nil
	case v.GetWorker() != r.cfg.Worker:
		return false, nil
	}
	free, ok := r.busy.Try(id)
	if !ok {
		return true, nil
	}
	defer free()
	switch s := sandbox.FromView(v); s.State {
	case sandbox.Ready:
		// Most changes of what lives say nothing: the log is not read for them.
		st, err := r.driver.Inspect(ctx, id)
		if err != nil {
			// A toolbox that is silent for a moment is no death. The pass says when it is one.
			return fault.CodeOf(err) != fault.NotFound, nil
		}
		if st.Alive {
			return false, nil
		}
	case sandbox.Failed, sandbox.Destroying, sandbox.Stopping:
	case sandbox.Stopped:
		return false, nil
	default:
		// It starts, or a view is behind the log.
		again = true
	}
	if err := r.known(ctx, v.GetTenantId(), id); err != nil {
		return false, fmt.Errorf("put it right: %w", err)
	}
	return again, nil
}
