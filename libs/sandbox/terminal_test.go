package sandbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// Each change of a terminal's size is recorded once, up to a bound, and only while the program runs.
func TestResizes(t *testing.T) {
	size := func(columns int) *commonv1.TerminalSize {
		return &commonv1.TerminalSize{Columns: uint32(columns), Rows: 24} //nolint:gosec // small
	}
	x := sandbox.Exec{State: sandbox.ExecRunning, Spec: &eventsv1.ExecSpec{Command: "sh", Terminal: size(80)}}
	require.Equal(t, uint32(80), x.TerminalSize().GetColumns())
	for i := range 2 * sandbox.MaxResizes {
		for _, c := range []int{80 + i, 81 + i, 81 + i} {
			bodies, err := sandbox.DecideExec(x, sandbox.ResizeExec{Size: size(c)})
			require.NoError(t, err)
			for _, b := range bodies {
				e := envelope.Recorded{Body: b}
				e.Time = start.Add(time.Duration(i) * time.Second)
				next, err := x.Evolve(e)
				require.NoError(t, err)
				require.True(t, proto.Equal(size(c), next.TerminalSize()))
				x = next
			}
		}
		require.Len(t, x.Resizes, min(i+1, sandbox.MaxResizes))
	}
	require.Equal(t, start.Add(7*time.Second), x.Resizes[7].Time)
	for name, c := range map[string]struct {
		exec   sandbox.Exec
		size   *commonv1.TerminalSize
		reason fault.Reason
	}{
		"unknown":     {exec: sandbox.Exec{}, size: size(1), reason: fault.ReasonExecNotFound},
		"no terminal": {exec: sandbox.Exec{State: sandbox.ExecRunning, Spec: &eventsv1.ExecSpec{}}, size: size(1), reason: fault.ReasonIllegalState},
		"waiting":     {exec: sandbox.Exec{State: sandbox.ExecRequested, Spec: x.Spec}, size: size(1), reason: fault.ReasonIllegalState},
		"over":        {exec: sandbox.Exec{State: sandbox.ExecCompleted, Spec: x.Spec}, size: size(1), reason: fault.ReasonIllegalState},
		"no size":     {exec: sandbox.Exec{State: sandbox.ExecRunning, Spec: x.Spec}, reason: fault.ReasonValidation},
	} {
		_, err := sandbox.DecideExec(c.exec, sandbox.ResizeExec{Size: c.size})
		require.True(t, fault.Is(err, c.reason), "%s: %v", name, err)
	}
}
