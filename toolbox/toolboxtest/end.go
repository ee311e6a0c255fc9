package toolboxtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/client"
)

// leaderExit: a program has ended when its leader has, whoever still holds its pipes.
func (s suite) leaderExit(t *testing.T) {
	began := time.Now()
	id := s.sh(t, "sleep 20 & echo out; echo err >&2; exit 5")
	c := s.collect(t, id, 0, 0)
	require.Less(t, time.Since(began), 10*time.Second)
	require.Equal(t, "exited", c.end.Reason)
	require.EqualValues(t, 5, c.end.ExitCode)
	require.Equal(t, "out\n", string(c.stdout))
	require.Equal(t, "err\n", string(c.stderr))
}

// usage only grows, and what one exec used is part of what the sandbox did.
func (s suite) usage(t *testing.T) {
	before, err := s.Usage(s.context(t), &toolboxv1.Usage{})
	require.NoError(t, err)
	require.NotEmpty(t, before.Method)
	c := s.collect(t, s.sh(t, "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"), 0, 0)
	require.NotNil(t, c.end.Usage)
	require.NotEmpty(t, c.end.UsageMethod)
	after, err := s.Usage(s.context(t), &toolboxv1.Usage{})
	require.NoError(t, err)
	require.Greater(t, after.UptimeMs, before.UptimeMs)
	require.LessOrEqual(t, c.end.Usage.CpuMs, after.GetUsage().GetCpuMs()-before.GetUsage().GetCpuMs()+1)
	require.GreaterOrEqual(t, after.GetUsage().GetMemoryPeakBytes(), before.GetUsage().GetMemoryPeakBytes())
	require.GreaterOrEqual(t, after.GetUsage().GetDiskWriteBytes(), before.GetUsage().GetDiskWriteBytes())
}

// shutdown ends what runs, tells those who are attached, and starts nothing more; asked again it does no harm.
func (s suite) shutdown(t *testing.T) {
	id := s.sh(t, "trap '' TERM; echo ready; while :; do sleep 600; done")
	stream, err := s.Attach(s.context(t), &toolboxv1.Attach{ExecId: id})
	require.NoError(t, err)
	defer stream.Close()
	_, err = stream.Recv()
	require.NoError(t, err)
	reply, err := s.Shutdown(s.context(t), &toolboxv1.Shutdown{GraceMs: 100})
	require.NoError(t, err)
	require.NotZero(t, reply.UptimeMs)
	e, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, "sandbox_destroyed", e.GetEnd().GetReason())
	_, err = s.Start(s.context(t), &toolboxv1.Start{ExecId: NewID(), Argv: []string{"/bin/sh", "-c", "echo no"}})
	require.Error(t, err)
	if again, err := s.Shutdown(s.context(t), &toolboxv1.Shutdown{}); err != nil {
		require.ErrorIs(t, err, client.ErrUnavailable, "it may be gone by now")
	} else {
		require.NotZero(t, again.UptimeMs)
	}
}
