package materialise

import (
	"context"
	"errors"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/history"
)

const (
	// snapshotTimeout bounds one attempt to make a snapshot; meanwhile nothing else is done with its sandbox but its end.
	snapshotTimeout = 15 * time.Minute
	// snapshotAttempts are made where a failure may not last.
	snapshotAttempts = 3
)

// snapshot makes the image that the log asks for, and records what came of it. A process that dies meanwhile leaves it asked for, and the repeated
// command makes it anew. Of a sandbox whose end is decided there is none: its own end says so.
func (r *Role) snapshot(ctx context.Context, s sandbox.Sandbox, m history.Meta, attempt int) error {
	if !s.Snapshot.Pending() || s.Ending() {
		return nil
	}
	if s.State != sandbox.Ready {
		return r.noSnapshot(ctx, s, m, fault.New(fault.FailedPrecondition, fault.ReasonIllegalState, "the sandbox was stopped before the snapshot was made"))
	}
	taken, err := r.takeSnapshot(ctx, s)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, errDestroyed):
		return nil
	case err != nil && fault.From(err).RetryAfter > 0 && attempt < snapshotAttempts:
		return err
	case err != nil:
		return r.noSnapshot(ctx, s, m, err)
	}
	seq := s.Snapshot.Seq
	_, err = r.record(ctx, s, "snapshotted", m, func(s sandbox.Sandbox, _ time.Time) sandbox.Command {
		return sandbox.MarkSnapshotted{Sequence: seq, Digest: taken.Digest, Bytes: taken.Bytes, Files: taken.Files, Pushed: taken.Pushed}
	})
	if err == nil {
		r.log.Info("snapshot made", "tenant", s.Tenant, "sandbox", s.ID, "image", s.Snapshot.Image, "digest", taken.Digest, "bytes", taken.Bytes)
	}
	return err
}

// takeSnapshot has the driver make it, until the end of the sandbox is decided.
func (r *Role) takeSnapshot(ctx context.Context, s sandbox.Sandbox) (runtime.Snapshotted, error) {
	driver, ok := r.driver.(runtime.Snapshotter)
	if !ok {
		// The scheduler asks no such worker; another driver may have been opened since.
		return runtime.Snapshotted{}, fault.New(fault.FailedPrecondition, fault.ReasonNotImplemented, "this worker makes no snapshots")
	}
	ctx, done := context.WithTimeout(ctx, snapshotTimeout)
	defer done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		r.watchEnd(ctx, s, cancel)
	}()
	taken, err := driver.Snapshot(ctx, runtime.SnapshotSpec{
		ID: s.ID, Tenant: s.Tenant, Image: s.Snapshot.Image, BaseImage: s.Image, MountPath: s.Workspace.GetMountPath(),
		Sequence: s.Snapshot.Seq, At: s.Snapshot.At,
	})
	cause := context.Cause(ctx)
	cancel(nil)
	<-watched
	if err != nil && errors.Is(cause, errDestroyed) {
		err = errDestroyed
	}
	return taken, err
}

func (r *Role) noSnapshot(ctx context.Context, s sandbox.Sandbox, m history.Meta, err error) error {
	f := fault.From(err)
	r.log.Warn("snapshot failed", "tenant", s.Tenant, "sandbox", s.ID, "correlation", m.Correlation, "error", err)
	seq := s.Snapshot.Seq
	_, err = r.record(ctx, s, "snapshot-failed", m, func(sandbox.Sandbox, time.Time) sandbox.Command {
		return sandbox.FailSnapshot{Sequence: seq, Reason: f.Reason, Message: f.Message}
	})
	return err
}
