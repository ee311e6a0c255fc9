package runner

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// fullAtTheEnd is a log that takes no ends while it is full.
type fullAtTheEnd struct {
	Log
	full *atomic.Bool
}

func (f fullAtTheEnd) Append(ctx context.Context, agg subject.Aggregate, tail eventlog.Tail, events ...envelope.Event) ([]envelope.Recorded, error) {
	for _, e := range events {
		if _, end := e.Body.(*eventsv1.ExecCompleted); end && f.full.Load() {
			return nil, fault.New(fault.ResourceExhausted, fault.ReasonLogFull, "the log is full")
		}
	}
	return f.Log.Append(ctx, agg, tail, events...)
}

// Readers are told of an end that was seen and cannot be recorded, until it is; and it is recorded as it was.
func TestAnEndThatCannotBeRecordedIsTold(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.markReady()
	full := &atomic.Bool{}
	full.Store(true)
	r.wrap = func(l Log) Log { return fullAtTheEnd{l, full} }
	startKeeper(t, r.state, r.box, hello)
	r.service(nil)
	x := r.exec(spec(), nil)
	told, err := r.NC.SubscribeSync(subject.Readers(tenant, r.box, x.agg.ID))
	require.NoError(t, err)
	x.send()
	for range 2 {
		m, err := told.NextMsg(10 * time.Second)
		require.NoError(t, err)
		require.Equal(t, sandbox.RecordPending, string(m.Data))
	}
	require.Equal(t, sandbox.ExecRunning, x.state().State)
	full.Store(false)
	require.Equal(t, int32(3), x.wait().Completed.GetExitCode())
	require.Equal(t, []string{"ExecStarted", "ExecCompleted"}, x.types())
	// One may have been on its way; after it there is none.
	_, _ = told.NextMsg(pendingEvery / 2)
	_, err = told.NextMsg(2 * pendingEvery)
	require.Error(t, err)
}
