package runner

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

// The toolbox is asked for the terminal that was asked for, and each size that it has later stands in the log between the exec's start
// and its end, whoever records what.
func TestSizesOfATerminalAreRecorded(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.markReady()
	end := make(chan struct{})
	asked := make(chan *commonv1.TerminalSize, 1)
	startKeeper(t, r.state, r.box, func(_ context.Context, p *process) *toolboxv1.End {
		asked <- p.start.GetTerminal()
		<-end
		return exited(0)
	})
	s := r.service(nil)
	on := spec()
	on.Terminal, on.KeepStdin = &commonv1.TerminalSize{Columns: 80, Rows: 24}, true
	x := r.exec(on, nil).send()
	require.Nil(t, x.outcome().GetError())
	require.True(t, proto.Equal(on.Terminal, <-asked))
	for _, columns := range []uint32{100, 100, 120} {
		require.NoError(t, s.runner.Resized(t.Context(), x.agg, &commonv1.TerminalSize{Columns: columns, Rows: 30}))
	}
	close(end)
	done := x.wait()
	require.Equal(t, []string{"ExecStarted", "ExecResized", "ExecResized", "ExecCompleted"}, x.types())
	require.Len(t, done.Resizes, 2)
	require.Equal(t, uint32(120), done.TerminalSize().GetColumns())
	require.WithinDuration(t, time.Now(), done.Resizes[0].Time, time.Minute)
	require.NoError(t, s.runner.Resized(t.Context(), x.agg, &commonv1.TerminalSize{Columns: 1, Rows: 1}), "it has ended meanwhile")
	require.Equal(t, sandbox.ExecCompleted, x.state().State)

	wrong := spec()
	wrong.Terminal = &commonv1.TerminalSize{Columns: 5000, Rows: 1}
	require.Equal(t, string(fault.ReasonValidation), r.exec(wrong, nil).send().outcome().GetError().GetReason())
}
