package app_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/app"
)

// waits has creates report what they get from the channel until it is closed.
func (w *world) waits() chan<- runtime.Progress {
	reports := make(chan runtime.Progress)
	w.host.with(func(h *host) {
		h.create = func(ctx context.Context, _ string) error {
			for {
				select {
				case p, ok := <-reports:
					if !ok {
						return nil
					}
					runtime.Report(ctx, p)
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
	})
	return reports
}

// shows waits until the view of a sandbox, which answers are made from, has a reason and a message.
func (w *world) shows(id string, p runtime.Progress) *commandsv1.SandboxView {
	w.t.Helper()
	kv, err := w.f.JS.KeyValue(w.t.Context(), topology.BucketSandbox)
	require.NoError(w.t, err)
	v := &commandsv1.SandboxView{}
	require.Eventually(w.t, func() bool {
		e, err := kv.Get(w.t.Context(), tenant+"."+id)
		return err == nil && proto.Unmarshal(e.Value(), v) == nil && v.GetReason() == p.Reason && v.GetMessage() == p.Message
	}, patience, tick, "%v", p)
	return v
}

func TestWhatAStartWaitsForIsShownWithinTwoSeconds(t *testing.T) {
	w := newWorld(t)
	w.start()
	reports := w.waits()
	id := ids.New()
	require.Nil(t, w.outcome(w.send(createCommand(id, nil))).GetError())
	for _, p := range []runtime.Progress{
		{Reason: string(fault.ReasonUnschedulable), Message: "no node has room for it: 1 Insufficient memory"},
		{Message: "its image is being pulled"},
		{Reason: string(fault.ReasonImagePullFailed), Message: "the registry does not answer"},
	} {
		began := time.Now()
		for range 10 {
			reports <- p
		}
		v := w.shows(id, p)
		require.Less(t, time.Since(began), 10*time.Second)
		require.Equal(t, sandbox.Starting, v.GetState())
	}
	close(reports)
	s := w.await(id, sandbox.Ready)
	require.Empty(t, s.Reason)
	require.Empty(t, s.Message)
	require.Equal(t, uint32(1), s.Attempt)
	require.Equal(t, 4, count(w.types(id), "SandboxStarting"), "one for the start and one for each change")
}

func TestAStartThatIsOverSoonSaysNothingOfItsWaits(t *testing.T) {
	w := newWorld(t)
	w.start()
	reports := w.waits()
	id := ids.New()
	w.send(createCommand(id, nil))
	reports <- runtime.Progress{Message: "it waits for a node"}
	reports <- runtime.Progress{Message: "its node prepares it"}
	close(reports)
	w.await(id, sandbox.Ready)
	require.Equal(t, []string{"SandboxRequested", "SandboxStarting", "SandboxReady"}, w.types(id))
}

func TestADeadlineSaysWhatWasWaitedFor(t *testing.T) {
	w := newWorld(t)
	w.start(func(c *app.Config) { c.StartDeadline = 4 * time.Second })
	reports := w.waits()
	id := ids.New()
	w.send(createCommand(id, nil))
	reports <- runtime.Progress{Reason: string(fault.ReasonVolumeFailed), Message: "the volume of its workspace could not be made so far"}
	s := w.await(id, sandbox.Failed)
	require.Equal(t, string(fault.ReasonStartDeadline), s.Reason)
	require.Equal(t, "it was not up within 4s: the volume of its workspace could not be made so far", s.Message)
}

func TestADeadlineThatAnotherProcessFindsSaysWhatWasWaitedFor(t *testing.T) {
	w := newWorld(t)
	p := w.start()
	reports := w.waits()
	id := ids.New()
	w.send(createCommand(id, nil))
	waited := runtime.Progress{Reason: string(fault.ReasonUnschedulable), Message: "no node takes it"}
	reports <- waited
	w.shows(id, waited)
	p.kill()
	w.ahead.Store(int64(2 * time.Minute))
	w.start()
	s := w.await(id, sandbox.Failed)
	require.Equal(t, string(fault.ReasonStartDeadline), s.Reason)
	require.Equal(t, "it was not up within 1m0s: no node takes it", s.Message)
}

func TestAHopelessCreateEndsAtOnce(t *testing.T) {
	w := newWorld(t)
	w.start()
	for reason, code := range map[fault.Reason]fault.Code{
		fault.ReasonImageNotFound: fault.NotFound, fault.ReasonClusterRefused: fault.FailedPrecondition, fault.ReasonQuota: fault.ResourceExhausted,
		fault.ReasonVolumeFailed: fault.FailedPrecondition,
	} {
		w.host.with(func(h *host) {
			h.create = func(context.Context, string) error { return fault.New(code, reason, "that is hopeless") }
		})
		id := ids.New()
		began := time.Now()
		w.send(createCommand(id, nil))
		s := w.await(id, sandbox.Failed)
		require.Less(t, time.Since(began), 10*time.Second, reason)
		require.Equal(t, string(reason), s.Reason)
		require.Equal(t, "that is hopeless", s.Message)
	}
}

func TestAStartThatChangesItsMindAllTheTimeWritesLittle(t *testing.T) {
	w := newWorld(t)
	w.start()
	reports := w.waits()
	id := ids.New()
	w.send(createCommand(id, nil))
	began := time.Now()
	for i := range 20_000 {
		reports <- runtime.Progress{Message: fmt.Sprint("step ", i)}
	}
	took := time.Since(began)
	close(reports)
	w.await(id, sandbox.Ready)
	require.LessOrEqual(t, count(w.types(id), "SandboxStarting"), 2+int(took/(500*time.Millisecond)))
}
