package app_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
)

func snapshotCommand(id, image string) *commandsv1.SandboxCommand {
	return &commandsv1.SandboxCommand{CommandId: ids.New(), SandboxId: id, Command: &commandsv1.SandboxCommand_Snapshot{Snapshot: &commandsv1.SnapshotSandbox{Image: image}}}
}

// over waits until the last snapshot of a sandbox has ended.
func (w *world) over(id string) sandbox.Snapshot {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return w.load(id).Snapshot.Over }, patience, tick)
	return w.load(id).Snapshot
}

func TestAProcessKilledAtAnyStepOfASnapshotIsTakenUpAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: takes many seconds")
	}
	w := newWorld(t)
	p := w.start()
	id := w.create()
	p.kill()
	steps := []string{
		"before SandboxSnapshotting", "after SandboxSnapshotting", "before snapshot", "snapshot made", "before SandboxSnapshotted", "after SandboxSnapshotted",
	}
	for i, step := range steps {
		image := "snap:" + string(rune('a'+i))
		p = w.startUntil(step)
		w.send(snapshotCommand(id, image))
		require.Eventually(t, p.hit.Load, patience, tick, "never came to: %s", step)
		p.kill()
		p = w.start()
		require.Eventually(t, func() bool { s := w.load(id).Snapshot; return s.Over && s.Image == image && w.pending() == 0 }, patience, tick, step)
		s := w.load(id).Snapshot
		require.Equal(t, []any{"sha256:" + image, "", i + 1}, []any{s.Digest, s.Reason, s.Count}, step)
		require.Equal(t, s.Seq, w.host.snapshots[image].Sequence, step)
		p.kill()
	}
	types := w.types(id)
	require.Equal(t, len(steps), count(types, "SandboxSnapshotting"))
	require.Equal(t, len(steps), count(types, "SandboxSnapshotted"))
}

func TestASnapshotThatFailsSaysWhyInTheLog(t *testing.T) {
	w := newWorld(t)
	w.start()
	id := w.create()
	tries := 0
	fails := func(f *fault.Error) {
		tries = 0
		w.host.with(func(h *host) { h.snapshot = func(context.Context) error { tries++; return f } })
	}
	fails(fault.New(fault.FailedPrecondition, fault.ReasonImageInvalid, "too large"))
	require.Empty(t, w.refused(snapshotCommand(id, "a")))
	s := w.over(id)
	require.Equal(t, []any{string(fault.ReasonImageInvalid), "too large", 1}, []any{s.Reason, s.Message, tries})
	fails(fault.New(fault.Unavailable, fault.ReasonImagePullFailed, "later").WithRetry(time.Millisecond))
	require.Empty(t, w.refused(snapshotCommand(id, "b")))
	s = w.over(id)
	require.Equal(t, []any{"b", string(fault.ReasonImagePullFailed), 3}, []any{s.Image, s.Reason, tries}, "what may help is tried again, and not for ever")
	require.Equal(t, sandbox.Ready, w.load(id).State)
	require.Equal(t, fault.ReasonSandboxNotFound, w.refused(snapshotCommand(ids.New(), "a")))
}

func TestTheEndOfASandboxEndsItsSnapshotAndAStopWaitsForIt(t *testing.T) {
	w := newWorld(t)
	w.start()
	begun, let := make(chan struct{}, 2), make(chan struct{})
	w.host.with(func(h *host) {
		h.snapshot = func(ctx context.Context) error {
			begun <- struct{}{}
			select {
			case <-let:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	})
	doomed, stopped := w.create(), w.create()
	require.Empty(t, w.refused(snapshotCommand(doomed, "a")))
	<-begun
	w.send(destroyCommand(doomed))
	w.await(doomed, sandbox.Destroyed)
	require.Zero(t, count(w.types(doomed), "SandboxSnapshotted")+count(w.types(doomed), "SandboxSnapshotFailed"))

	require.Empty(t, w.refused(snapshotCommand(stopped, "b")))
	<-begun
	require.Equal(t, fault.ReasonIllegalState, w.refused(snapshotCommand(stopped, "c")), "one at a time")
	require.Empty(t, w.refused(stopCommand(stopped)))
	require.Equal(t, sandbox.Stopping, w.load(stopped).State)
	close(let)
	w.await(stopped, sandbox.Stopped)
	require.Equal(t, "sha256:b", w.load(stopped).Snapshot.Digest)
	require.Equal(t, fault.ReasonSandboxStopped, w.refused(snapshotCommand(stopped, "c")))
}

func TestAWorkerThatMakesNoImagesRefusesASnapshot(t *testing.T) {
	w := newWorld(t)
	w.plain = true
	w.start()
	id := w.create()
	require.Equal(t, fault.ReasonNotImplemented, w.refused(snapshotCommand(id, "a")))
	require.Zero(t, count(w.types(id), "SandboxSnapshotting"))
}
