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
		err := r.attend(ctx, id, func() error { return r.workspace(ctx, id, key) })
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

func (r *Reconciler) workspace(ctx context.Context, id, key string) error {
	_, err := r.find.Find(ctx, subject.AnyTenantSandbox(id))
	if err != nil && fault.CodeOf(err) != fault.NotFound {
		return err
	}
	if err == nil {
		// The log knows it, so it is removed by command when its time has come. The zero time says that it was looked up.
		r.mu.Lock()
		r.seen[key] = time.Time{}
		r.mu.Unlock()
		return nil
	}
	if !r.old(key, r.cfg.WorkspaceGrace) {
		return nil
	}
	if kept, err := runtime.Kept(ctx, r.driver, id, r.now()); kept {
		return err
	}
	r.log.Warn("removing a workspace that the log does not know", "sandbox", id)
	return r.driver.DeleteWorkspace(ctx, id)
}
