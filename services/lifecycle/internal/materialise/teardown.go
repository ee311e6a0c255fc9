package materialise

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/history"
)

// teardown ends a sandbox whose end is decided. While it cannot be ended it stays destroying and the command is repeated;
// destroyed is recorded only when the driver has seen that nothing runs any more.
func (r *Role) teardown(ctx context.Context, s sandbox.Sandbox, m history.Meta) error {
	if s.State != sandbox.Destroying {
		return nil
	}
	end, cancel := context.WithTimeout(ctx, r.cfg.EndTimeout)
	defer cancel()
	used, err := r.driver.Destroy(end, s.ID)
	if err != nil {
		r.log.Warn("sandbox cannot be ended yet", "tenant", s.Tenant, "sandbox", s.ID, "correlation", m.Correlation, "error", err)
		return fmt.Errorf("end sandbox %s: %w", s.ID, err)
	}
	// Before the fact is recorded, so that whoever has seen it destroyed finds the place free.
	if err := r.places.Release(ctx, s.Tenant, r.cfg.Name, s.ID); err != nil {
		return err
	}
	if err := r.recordDestroyed(ctx, s, m, used); err != nil {
		return err
	}
	r.log.Info("sandbox destroyed", "tenant", s.Tenant, "sandbox", s.ID, "reason", s.Reason)
	return nil
}

// Teardown is teardown for the reconciler, which must hold the sandbox in Busy.
func (r *Role) Teardown(ctx context.Context, s sandbox.Sandbox, m history.Meta) error {
	return r.teardown(ctx, s, m)
}

// recordDestroyed records destroyed and the release of workspace and name together: between the two they would be kept for ever.
func (r *Role) recordDestroyed(ctx context.Context, s sandbox.Sandbox, m history.Meta, used runtime.Usage) error {
	for range eventlog.MaxAttempts {
		m.Time = r.now()
		entries, err := r.decideDestroyed(ctx, s, m, used)
		if err != nil || len(entries) == 0 {
			return err
		}
		_, err = r.events.AppendBatch(ctx, entries...)
		if err == nil || !errors.Is(err, eventlog.ErrConflict) {
			return err
		}
	}
	return fault.New(fault.Conflict, fault.ReasonConflict, "too many changes at the same time").WithRetry(time.Second)
}

func (r *Role) decideDestroyed(ctx context.Context, s sandbox.Sandbox, m history.Meta, used runtime.Usage) ([]eventlog.Entry, error) {
	boxes, err := eventlog.LoadUpTo(ctx, r.events, subject.Sandbox(s.Tenant, s.ID), s.Seq)
	if err != nil {
		return nil, err
	}
	now, err := sandbox.Fold(boxes)
	if err != nil {
		return nil, err
	}
	disks, err := eventlog.Known(ctx, r.events, subject.Workspace(s.Tenant, s.ID))
	if err != nil {
		return nil, err
	}
	disk, err := sandbox.FoldWorkspace(disks)
	if err != nil {
		return nil, err
	}
	after := m.Time.Add(r.cfg.KeepWorkspace)
	var entries []eventlog.Entry
	bodies, err := sandbox.Decide(now, sandbox.MarkDestroyed{At: m.Time, Usage: Metrics(used), DeleteAfter: after})
	if err != nil {
		return nil, err
	}
	if len(bodies) > 0 {
		entries = append(entries, eventlog.Entry{
			Aggregate: boxes.Aggregate, After: boxes.Tail(),
			Events: history.Events(m, history.EventID("destroyed", s.ID, now.Seq), s.Tenant, bodies...),
		})
	}
	bodies, err = sandbox.DecideWorkspace(disk, sandbox.ReleaseWorkspace{
		SandboxID: s.ID, Worker: r.cfg.Name, DeleteAfter: after, SizeBytes: s.Workspace.GetSizeBytes(),
	})
	if err != nil {
		return nil, err
	}
	if len(bodies) > 0 {
		entries = append(entries, eventlog.Entry{
			Aggregate: disks.Aggregate, After: disks.Tail(),
			Events: history.Events(m, history.EventID("released", s.ID, disk.Seq), s.Tenant, bodies...),
		})
	}
	return r.releaseName(ctx, now, m, entries)
}

// releaseName adds that the sandbox's name is free again, where it has one.
func (r *Role) releaseName(ctx context.Context, s sandbox.Sandbox, m history.Meta, entries []eventlog.Entry) ([]eventlog.Entry, error) {
	if s.Name == "" {
		return entries, nil
	}
	h, err := eventlog.Last(ctx, r.events, subject.Name(s.Tenant, sandbox.NameID(s.Name)))
	if err != nil {
		return nil, err
	}
	name, err := sandbox.FoldName(h)
	if err != nil {
		return nil, err
	}
	bodies, err := sandbox.DecideName(name, sandbox.ReleaseName{Name: s.Name, Sandbox: s.ID})
	if err != nil || len(bodies) == 0 {
		return entries, err
	}
	return append(entries, eventlog.Entry{
		Aggregate: h.Aggregate, After: h.Tail(), Events: history.Events(m, history.EventID("name-released", s.ID, name.Seq), s.Tenant, bodies...),
	}), nil
}

// deleteWorkspace removes a workspace whose time has come, by the log, its own mark and this worker's clock. One that is not due is left
// alone, whoever asked.
func (r *Role) deleteWorkspace(ctx context.Context, s sandbox.Sandbox, m history.Meta) error {
	agg := subject.Workspace(s.Tenant, s.ID)
	h, err := eventlog.Current(ctx, r.events, agg)
	if err != nil {
		return err
	}
	disk, err := sandbox.FoldWorkspace(h)
	if err != nil {
		return err
	}
	m.Time = r.now()
	if s.State != sandbox.Destroyed || !disk.Due(m.Time) || disk.Worker != r.cfg.Name {
		r.log.Info("a workspace that is not due was kept", "tenant", s.Tenant, "sandbox", s.ID, "delete_after", disk.DeleteAfter)
		return nil
	}
	if kept, err := runtime.Kept(ctx, r.driver, s.ID, m.Time); kept {
		// gc asks again as long as it is due, so this is no command to repeat.
		r.log.Info("a workspace is kept by its own mark", "tenant", s.Tenant, "sandbox", s.ID, "error", err)
		return nil
	}
	if err := r.driver.DeleteWorkspace(ctx, s.ID); err != nil {
		return fmt.Errorf("delete the workspace of sandbox %s: %w", s.ID, err)
	}
	_, err = history.RecordWorkspace(ctx, r.events, s.Tenant, s.ID, "workspace-deleted", m, sandbox.MarkWorkspaceDeleted{
		At: m.Time, SandboxID: s.ID, Reason: sandbox.ReasonDeleteAfter,
	})
	return err
}
