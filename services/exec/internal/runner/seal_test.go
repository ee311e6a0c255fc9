package runner

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/services/exec/internal/relay"
)

// sealed is an exec whose output was made final after its first line, by somebody who may record its loss. Then it writes on.
func sealed(t *testing.T, change func(*Config)) (*exec, relay.Position) {
	t.Helper()
	r := newRig(t)
	r.starting()
	r.markReady()
	more := make(chan struct{})
	startKeeper(t, r.state, r.box, func(_ context.Context, p *process) *toolboxv1.End {
		p.write(1, []byte("begun\n"))
		<-more
		p.write(1, []byte("late\n"))
		return exited(0)
	})
	r.service(change)
	x := r.exec(spec(), nil).send()
	require.Eventually(t, func() bool { return len(x.output()["stdout"]) == 6 }, 10*time.Second, 5*time.Millisecond)
	out, err := relay.New(t.Context(), r.JS, topology.StreamOutput, relay.Options{})
	require.NoError(t, err)
	pos, err := out.Seal(t.Context(), relay.Exec{ID: x.agg.ID, Subject: subject.Output(tenant, r.box, x.agg.ID)})
	require.NoError(t, err)
	close(more)
	return x, pos
}

// What the log says of a lost command's output is what is recorded of it, however much more its relay held when it was lost.
func TestALossHasAllOutputThatIsEverRecorded(t *testing.T) {
	x, pos := sealed(t, nil)
	_, err := eventlog.Execute(t.Context(), x.r.log, x.agg, func(h eventlog.History) ([]envelope.Event, error) {
		s, err := sandbox.FoldExec(h)
		require.NoError(t, err)
		bodies, err := sandbox.DecideExec(s, sandbox.LoseExec{Lost: &eventsv1.ExecLost{
			Reason: "sandbox_lost", LastChunk: pos.Chunk, StdoutBytes: pos.Stream(relay.Stdout).End,
		}})
		return sandbox.Events(sandbox.CommandMeta{ID: sandbox.EndCommand(x.agg.ID), Tenant: tenant, Time: time.Now()}, bodies...), err
	})
	require.NoError(t, err)
	// It has met the seal with what it has more.
	require.Eventually(t, func() bool { return strings.Contains(x.r.logs.String(), relay.ErrFenced.Error()) }, 10*time.Second, time.Millisecond)
	s := x.wait()
	require.Equal(t, "sandbox_lost", s.Lost.GetReason())
	require.Equal(t, "begun\n", string(x.output()["stdout"]))
	require.EqualValues(t, 6, s.Lost.GetStdoutBytes())
}

// Who made the output final may die before it says why: whoever runs the exec does it then.
func TestAnExecWhoseSealerDiedIsLostByItsOwner(t *testing.T) {
	x, pos := sealed(t, func(c *Config) { c.SealWait = 100 * time.Millisecond })
	s := x.wait()
	require.Equal(t, []string{"ExecStarted", "ExecLost"}, x.types())
	require.Equal(t, "exec_lost", s.Lost.GetReason())
	require.Equal(t, pos.Chunk, s.Lost.GetLastChunk())
	require.EqualValues(t, 6, s.Lost.GetStdoutBytes())
	require.Equal(t, "begun\n", string(x.output()["stdout"]))
}
