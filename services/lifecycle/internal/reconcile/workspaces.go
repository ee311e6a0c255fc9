package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// workspaces removes those that the log neither knows nor released, long after they were first seen.
func (r *Reconciler) workspaces(ctx context.Context) error {
	all, err := r.driver.Workspaces(ctx)
	if err != nil {
		return fmt.Errorf("list the workspaces of this worker: %w", err)
	}
	here := make(map[string]bool, len(all))
	var errs []error
	for _, id := range all {
		key := "workspace " + id
		here[key] = true
		if _, live := r.live.Get(id); live || !subject.ValidToken(id) {
			continue
		}
		r.mu.Lock()
		first, ok := r.seen[key]
		r.mu.Unlock()
		if ok && first.IsZero() {
			continue
		}
		err := r.workspace(ctx, id, key)
		errs = append(errs, err)
		if fault.Is(err, fault.ReasonLogUnavailable) {
			// It would not answer for the others either, and each question takes seconds then.
			return errors.Join(errs...)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.seen {
		if strings.HasPrefix(key, "workspace ") && !here[key] {
			delete(r.seen, key)
		}
	}
	return errors.Join(errs...)
}

// workspace asks the log about one. It does not hold the sandbox meanwhile: a pass over the sandboxes passes over what is held, and
// would find it held each time, since both begin with the same tick.
func (r *Reconciler) workspace(ctx context.Context, id, key string) error {
	known, err := r.knows(ctx, id)
	switch {
	case err != nil:
		return fmt.Errorf("workspace %s: %w", id, err)
	case known:
		// It is removed by command when its time has come. The zero time says that it was looked up.
		r.mu.Lock()
		r.seen[key] = time.Time{}
		r.mu.Unlock()
		return nil
	case !r.old(key, r.cfg.WorkspaceGrace):
		return nil
	}
	return r.attend(ctx, id, func() error { return r.unclaimed(ctx, id) })
}

// unclaimed removes a workspace, unless the log knows it by now or its own mark keeps it.
func (r *Reconciler) unclaimed(ctx context.Context, id string) error {
	if known, err := r.knows(ctx, id); known || err != nil {
		return err
	}
	if kept, err := runtime.Kept(ctx, r.driver, id, r.now()); kept {
		return err
	}
	r.log.Warn("removing a workspace that the log does not know", "sandbox", id)
	return r.driver.DeleteWorkspace(ctx, id)
}

// knows reports whether the log has a sandbox of an id.
func (r *Reconciler) knows(ctx context.Context, id string) (bool, error) {
	_, err := r.find.Find(ctx, subject.AnyTenantSandbox(id))
	if fault.CodeOf(err) == fault.NotFound {
		return false, nil
	}
	return err == nil, err
}
