package runner

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/sandbox"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/services/exec/internal/relay"
)

const lot = 8 << 20

// chatty writes far over the limit of the test and goes on until somebody ends it; brief ends by itself.
func chatty(ctx context.Context, p *process) *toolboxv1.End {
	brief(ctx, p)
	<-ctx.Done()
	return exited(0)
}

func brief(_ context.Context, p *process) *toolboxv1.End {
	for range lot / (64 << 10) {
		p.write(1, bytes.Repeat([]byte{'y'}, 64<<10))
	}
	return exited(0)
}

func limited(limit uint64, stop bool) *eventsv1.ExecSpec {
	s := spec()
	s.OutputLimitBytes, s.StopAtOutputLimit = limit, stop
	return s
}

func TestOutputOverTheLimitIsAFact(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.markReady()
	startKeeper(t, r.state, r.box, brief)
	r.service(nil)
	x := r.exec(limited(100_000, false), nil).send()
	c := x.wait().Completed
	require.Equal(t, sandbox.ReasonExited, c.GetReason(), "it was not asked to stop")
	require.Equal(t, uint64(lot), c.GetStdout().GetBytes())
	require.Equal(t, uint64(lot-200_000), c.GetStdout().GetDroppedBytes())
	require.Len(t, c.GetStdout().GetGaps(), 1)
	require.Equal(t, uint64(100_000), c.GetStdout().GetGaps()[0].GetFrom())
	require.Equal(t, uint64(lot-100_000), c.GetStdout().GetGaps()[0].GetTo())
	require.Equal(t, "8188608 of 8388608 bytes of stdout are not recorded, it passed its limit of 100000", c.GetMessage())
	require.Len(t, c.GetLimits(), 1)
	hit := c.GetLimits()[0]
	require.Equal(t, "output host 100000 8188608", fmt.Sprint(hit.GetLimit(), " ", hit.GetSource(), " ", hit.GetValue(), " ", hit.GetAmount()))
	require.Equal(t, c.GetMessage(), hit.GetMessage())
	require.Zero(t, c.GetStderr().GetDroppedBytes())

	// Without a limit of its own it has the worker's, which the log says.
	y := r.exec(spec(), nil).send()
	s := y.wait()
	require.Zero(t, s.Completed.GetStdout().GetDroppedBytes())
	require.Empty(t, s.Completed.GetMessage())
	require.Equal(t, uint64(relay.DefaultLimit), s.Spec.GetOutputLimitBytes())
}

func TestLimitOfOutputOverTheWorkersIsRefused(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.markReady()
	startKeeper(t, r.state, r.box, brief)
	r.service(func(c *Config) { c.OutputLimit = 1000 })
	x := r.exec(limited(1001, false), nil).send()
	o := x.outcome()
	require.Equal(t, "validation", o.GetError().GetReason())
	require.Equal(t, "at most 1000", o.GetError().GetFields()["output_limit_bytes"])
	require.Nil(t, r.exec(limited(1000, false), nil).send().outcome().GetError())
}

// A command that is to stop at its limit is ended by it, also when the service that saw it pass is gone before it could say so.
func TestOutputLimitEndsTheCommandWhereAsked(t *testing.T) {
	for name, restart := range map[string]bool{"at once": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.starting()
			r.markReady()
			held := make(chan struct{})
			k := startKeeper(t, r.state, r.box, func(ctx context.Context, p *process) *toolboxv1.End {
				p.write(1, make([]byte, 1000))
				<-held
				return chatty(ctx, p)
			})
			s := r.service(nil)
			x := r.exec(limited(100_000, true), nil).send()
			require.Nil(t, x.outcome().GetError())
			if restart {
				s.stop()
				close(held)
				r.service(nil)
			} else {
				close(held)
			}
			c := x.wait().Completed
			require.Equal(t, sandbox.ReasonOutputLimit, c.GetReason())
			require.NotZero(t, c.GetExitCode())
			require.Equal(t, 1, k.started(x.agg.ID))
			require.Greater(t, c.GetStdout().GetBytes(), uint64(100_000))
		})
	}
}

// Who cancels a command that would stop at its limit, and has not passed it, has cancelled it.
func TestCancelIsNotTheLimit(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.markReady()
	startKeeper(t, r.state, r.box, forever)
	r.service(nil)
	x := r.exec(limited(100_000, true), nil).send()
	require.Nil(t, x.outcome().GetError())
	x.cancel()
	require.Equal(t, sandbox.ReasonCancelled, x.wait().Completed.GetReason())
}
