package keeper_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/cgroup"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/keeper/keepertest"
	"github.com/sandtrail/sandtrail/toolbox/launch"
)

// unclaimed makes a description that of a warm sandbox.
func unclaimed(s *launch.Spec) {
	s.Warm, s.SandboxID, s.Env, s.Hostname = true, "", nil, "sandbox-warm"
}

func refused(t *testing.T, err error, reason string) {
	t.Helper()
	var answer *client.Error
	require.ErrorAs(t, err, &answer)
	require.Equal(t, reason, answer.Reason)
}

func TestAWarmSandboxRunsNothingBeforeItIsSomebodys(t *testing.T) {
	b := keepertest.Start(t, unclaimed)
	hello, err := b.Hello(t.Context(), &toolboxv1.Hello{})
	require.NoError(t, err)
	require.True(t, hello.GetAlive())
	require.True(t, hello.GetAwaitsConfigure())
	require.Empty(t, hello.GetSandboxId())
	_, err = b.Client.Start(t.Context(), &toolboxv1.Start{ExecId: keepertest.NewID(), Argv: []string{"true"}})
	refused(t, err, "illegal_state")

	moved := filepath.Join(b.State, "elsewhere")
	require.NoError(t, os.Rename(b.Spec.Dir, moved))
	c := client.New(client.DirDialer(moved), "")
	for _, bad := range []*toolboxv1.Configure{
		{}, {SandboxId: "../x"}, {SandboxId: "a", Hostname: "UPPER"}, {SandboxId: "a", Hostname: "two words"}, {SandboxId: "a", Env: map[string]string{"A=B": ""}},
	} {
		_, err = c.Configure(t.Context(), bad)
		refused(t, err, "validation")
	}
	mine := &toolboxv1.Configure{SandboxId: "one", Env: map[string]string{"CANARY": "of-one"}, Hostname: "sandbox-12345678"}
	for range 2 {
		_, err = c.Configure(t.Context(), mine)
		require.NoError(t, err)
	}
	for _, other := range []*toolboxv1.Configure{
		{SandboxId: "two", Env: mine.Env, Hostname: mine.Hostname}, {SandboxId: "one", Hostname: mine.Hostname}, {SandboxId: "one", Env: mine.Env},
	} {
		_, err = c.Configure(t.Context(), other)
		refused(t, err, "illegal_state")
	}
	hello, err = c.Hello(t.Context(), &toolboxv1.Hello{})
	require.NoError(t, err)
	require.False(t, hello.GetAwaitsConfigure())
	require.Equal(t, "one", hello.GetSandboxId())

	// CAP_KILL is all that init has left.
	id := keepertest.NewID()
	_, err = c.Start(t.Context(), &toolboxv1.Start{ExecId: id, Argv: []string{"sh", "-c", `hostname; echo $CANARY; grep -E "Cap(Eff|Prm|Inh)" /proc/1/status`}})
	require.NoError(t, err)
	require.Equal(t, "sandbox-12345678\nof-one\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000020\nCapEff:\t0000000000000020\n", readAll(t, c, id))

	reply, err := c.Shutdown(t.Context(), &toolboxv1.Shutdown{})
	require.NoError(t, err)
	require.NotZero(t, reply.GetUptimeMs())
	b.Wait(t)
	noGroup(t, b)
	left, err := os.ReadDir(moved)
	require.NoError(t, err)
	require.Empty(t, left)
	require.NotContains(t, b.Log.String(), "of-one")
}

// What a sandbox used while it was nobody's is nobody's to pay.
func TestUsageBeginsWhenAWarmSandboxBecomesSomebodys(t *testing.T) {
	b := keepertest.Start(t, unclaimed)
	before, err := b.Usage(t.Context(), &toolboxv1.Usage{})
	require.NoError(t, err)
	began := time.Now()
	_, err = b.Configure(t.Context(), &toolboxv1.Configure{SandboxId: "one"})
	require.NoError(t, err)
	after, err := b.Usage(t.Context(), &toolboxv1.Usage{})
	require.NoError(t, err)
	g, err := cgroup.Open(b.Spec.Cgroup)
	require.NoError(t, err)
	if g.Real() {
		all := uint64(g.CPU().Milliseconds()) //nolint:gosec // no time is negative
		require.NotZero(t, before.GetUsage().GetCpuMs())
		require.LessOrEqual(t, after.GetUsage().GetCpuMs(), all-before.GetUsage().GetCpuMs()+1, "of %d ms in all", all)
	}
	require.LessOrEqual(t, after.GetUptimeMs(), uint64(time.Since(began).Milliseconds())) //nolint:gosec // likewise
}

func TestAKeeperThatWasStartedForSomebodyIsNotConfigured(t *testing.T) {
	b := keepertest.Start(t)
	_, err := b.Configure(t.Context(), &toolboxv1.Configure{SandboxId: b.Spec.SandboxID, Env: b.Spec.Env})
	refused(t, err, "illegal_state")
}

// readAll is the standard output of an exec that succeeds.
func readAll(t *testing.T, c *client.Client, exec string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := c.Attach(ctx, &toolboxv1.Attach{ExecId: exec})
	require.NoError(t, err)
	defer s.Close()
	var out []byte
	for {
		e, err := s.Recv()
		require.NoError(t, err)
		if d := e.GetData(); d.GetStream() == 1 {
			out = append(out, d.GetData()...)
		}
		if end := e.GetEnd(); end != nil {
			require.Zero(t, end.GetExitCode(), "%v", end)
			return string(out)
		}
	}
}
