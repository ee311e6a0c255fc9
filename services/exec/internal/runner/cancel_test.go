package runner

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// beforeStart is a log that calls do before the first ExecStarted is appended.
type beforeStart struct {
	Log
	once sync.Once
	do   func()
}

func (l *beforeStart) Append(ctx context.Context, agg subject.Aggregate, after eventlog.Tail, events ...envelope.Event) ([]envelope.Recorded, error) {
	if slices.ContainsFunc(events, func(e envelope.Event) bool { _, ok := e.Body.(*eventsv1.ExecStarted); return ok }) {
		l.once.Do(l.do)
	}
	return l.Log.Append(ctx, agg, after, events...)
}

// Whenever a cancel comes while an exec is on its way from its sandbox's readiness to its program, the exec ends cancelled.
func TestACancelAtAnyMomentOfAStartCounts(t *testing.T) {
	for name, c := range map[string]struct {
		at     func(r *rig, k *keeper, cancelled func())
		starts int
	}{
		"before its start is recorded": {at: func(r *rig, _ *keeper, cancelled func()) {
			r.wrap = func(l Log) Log { return &beforeStart{Log: l, do: cancelled} }
		}},
		"before the toolbox has it, for longer than an end is tried": {starts: 1, at: func(_ *rig, k *keeper, cancelled func()) {
			k.starting = sync.OnceFunc(cancelled)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.starting()
			k := startKeeper(t, r.state, r.box, forever)
			x := r.exec(spec(), nil)
			c.at(r, k, func() {
				x.cancel()
				// The answer comes behind the last try to end the program.
				_, err := x.inbox.NextMsg(10 * time.Second)
				require.NoError(t, err)
			})
			r.service(nil)
			x.send()
			require.Nil(t, x.outcome().GetError())
			r.markReady()
			s := x.wait()
			require.Equal(t, sandbox.ReasonCancelled, s.Completed.GetReason())
			require.NotZero(t, s.Completed.GetExitCode())
			require.Equal(t, c.starts, k.started(x.agg.ID))
		})
	}
}
