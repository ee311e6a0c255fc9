package agent_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/agent/agenttest"
	"github.com/sandtrail/sandtrail/toolbox/keeper/keepertest"
)

var attack struct {
	once sync.Once
	data []byte
	err  error
}

// attacker puts testdata/attack into the workspace.
func attacker(t *testing.T, b *agenttest.Box) {
	t.Helper()
	attack.once.Do(func() {
		program := filepath.Join(t.TempDir(), "attack")
		build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", program, "./testdata/attack")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := build.CombinedOutput(); err != nil {
			attack.err = fmt.Errorf("%w: %s", err, text)
			return
		}
		attack.data, attack.err = os.ReadFile(program)
	})
	require.NoError(t, attack.err)
	require.NoError(t, os.WriteFile(filepath.Join(b.Workspace, "attack"), attack.data, 0o755))
}

// homes are where an agent runs; gVisor is another, see gvisor_test.go.
var homes = map[string]func(t *testing.T, more ...string) *agenttest.Box{
	"common process": func(t *testing.T, more ...string) *agenttest.Box { return agenttest.Host(t, more...) },
}

func everywhere(t *testing.T, test func(t *testing.T, b *agenttest.Box), more ...string) {
	for name, start := range homes {
		t.Run(name, func(t *testing.T) {
			b := start(t, more...)
			attacker(t, b)
			test(t, b)
		})
	}
}

// begin starts a program and waits for a line of it.
func begin(t *testing.T, b *agenttest.Box, line string, argv ...string) string {
	t.Helper()
	id := keepertest.NewID()
	_, err := b.Client.Start(t.Context(), &toolboxv1.Start{ExecId: id, Argv: argv})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	s, err := b.Attach(ctx, &toolboxv1.Attach{ExecId: id})
	require.NoError(t, err)
	defer s.Close()
	var out strings.Builder
	for !strings.Contains(out.String(), line) {
		e, err := s.Recv()
		require.NoError(t, err, out.String())
		require.Nil(t, e.GetEnd(), "%s", out.String())
		out.Write(e.GetData().GetData())
	}
	return id
}

// stays counts the attacker's processes: those in the agent's sandbox, or of its user.
func stays(t *testing.T, b *agenttest.Box) int {
	t.Helper()
	o := b.Sh(t, `n=0; for f in /proc/[0-9]*/cmdline; do c=$(tr '\0' ' ' 2>/dev/null <$f); case "$c" in *attack\ *) n=$((n+1));; esac; done; echo $n`)
	var n int
	_, err := fmt.Sscan(o.Stdout, &n)
	require.NoError(t, err, o.Stderr)
	return n
}

func TestAProgramCannotReadOrChangeTheAgent(t *testing.T) {
	everywhere(t, func(t *testing.T, b *agenttest.Box) {
		o := b.Run(t, "./attack", "reach")
		lines := strings.Split(strings.TrimSpace(o.Stdout), "\n")
		require.Greater(t, len(lines), 40, o.Stderr)
		for _, line := range lines {
			require.Contains(t, line, ": refused", o.Stdout)
		}
		require.Equal(t, "exited", o.Reason)
	})
}

func TestNoSignalThatCanBeHandledEndsTheAgent(t *testing.T) {
	everywhere(t, func(t *testing.T, b *agenttest.Box) {
		for range 3 {
			o := b.Run(t, "./attack", "signals")
			require.Equal(t, "sent\n", o.Stdout, "%+v\n%s", o.End, b.Log())
		}
		h, err := b.Hello(t.Context(), &toolboxv1.Hello{})
		require.NoError(t, err, b.Log())
		require.True(t, h.Alive)
	})
}

func TestTheAgentsPortCannotBeTakenOver(t *testing.T) {
	everywhere(t, func(t *testing.T, b *agenttest.Box) {
		_, port, err := net.SplitHostPort(b.Agent.Address)
		require.NoError(t, err)
		o := b.Run(t, "./attack", "port", port)
		require.Equal(t, 3, strings.Count(o.Stdout, ": refused"), o.Stdout)
	}, "-listen", "0.0.0.0:0")
}

// Whoever has lost parent, session and environment is found by the mark; who has taken the mark off is ended with any tree that is.
// Another command is left alone.
func TestNothingOfATreeOutlivesItsEnd(t *testing.T) {
	for _, how := range []string{"marked", "unmarked"} {
		t.Run(how, func(t *testing.T) {
			everywhere(t, func(t *testing.T, b *agenttest.Box) {
				other := begin(t, b, "on", "sh", "-c", "echo on; sleep 600; echo over")
				id := begin(t, b, "ready", "./attack", "leave", how)
				require.Eventually(t, func() bool { return stays(t, b) >= 4 }, 60*time.Second, time.Millisecond)
				_, err := b.Signal(t.Context(), &toolboxv1.Signal{ExecId: id, Tree: true, GraceMs: 50})
				require.NoError(t, err)
				require.Equal(t, "cancelled", b.Follow(t, id, 0, 0).Reason)
				require.Zero(t, stays(t, b))
				list, err := b.List(t.Context(), &toolboxv1.List{})
				require.NoError(t, err)
				for _, e := range list.Execs {
					if e.ExecId == other {
						require.Nil(t, e.End)
					}
				}
			})
		})
	}
}

// A fork bomb has all the processes that programs may have. The agent answers all the while, ends it, and starts the next program.
func TestAForkBombIsEnded(t *testing.T) {
	b := agenttest.Host(t, "-processes", "40")
	attacker(t, b)
	id := begin(t, b, "full", "./attack", "bomb")
	// One of the bomb that dies for want of a thread leaves a place for a moment.
	var refused keepertest.Outcome
	require.Eventually(t, func() bool {
		refused = b.Run(t, "true")
		return refused.Reason == "start_failed"
	}, 60*time.Second, time.Millisecond)
	require.Contains(t, refused.Message, "limit of processes")
	_, err := b.Signal(t.Context(), &toolboxv1.Signal{ExecId: id, Tree: true})
	require.NoError(t, err)
	require.Equal(t, "cancelled", b.Follow(t, id, 0, 0).Reason)
	require.Zero(t, b.Run(t, "true").ExitCode)
	require.Zero(t, stays(t, b))
}

// Output that nobody reads is kept as far as there is room for all of it, and every byte that is not is told of.
func TestOutputThatNobodyReadsIsBoundedForAllTogether(t *testing.T) {
	const total, written = 4 << 20, 3 << 20
	b := agenttest.Host(t, "-spool-bytes", fmt.Sprint(total), "-output-cap", "1048576")
	ids := make([]string, 12)
	for i := range ids {
		ids[i] = keepertest.NewID()
		script := fmt.Sprintf("head -c %d /dev/zero; head -c %d /dev/zero >&2", written, written)
		_, err := b.Client.Start(t.Context(), &toolboxv1.Start{ExecId: ids[i], Argv: []string{"sh", "-c", script}})
		require.NoError(t, err)
	}
	kept := 0
	for _, id := range ids {
		require.Eventually(t, func() bool {
			r, err := b.Client.Start(t.Context(), &toolboxv1.Start{ExecId: id, Argv: []string{"true"}})
			require.NoError(t, err)
			require.False(t, r.Started)
			return r.State.End != nil
		}, 60*time.Second, 10*time.Millisecond)
	}
	for _, id := range ids {
		o := b.Follow(t, id, 0, 0)
		kept += len(o.Stdout) + len(o.Stderr)
		require.EqualValues(t, 2*written, uint64(len(o.Stdout)+len(o.Stderr))+o.Skipped)
		require.EqualValues(t, written, o.End.Stdout.Bytes)
	}
	require.Positive(t, kept)
	// What is in memory before a file is made comes on top, for each stream.
	require.LessOrEqual(t, kept, total+len(ids)*2*(16<<10))
	o := b.Sh(t, fmt.Sprintf("head -c %d /dev/zero", 16*written))
	require.Len(t, o.Stdout, 16*written, "one that is read gets all of it")
}

func TestOrphansAreWaitedFor(t *testing.T) {
	everywhere(t, func(t *testing.T, b *agenttest.Box) {
		for range 10 {
			b.Sh(t, "(setsid sleep 0.01 &); (sleep 0.01 &)")
		}
		require.Eventually(t, func() bool {
			o := b.Sh(t, `n=0; for f in /proc/[0-9]*/stat; do case "$(cat $f 2>/dev/null)" in *"(sleep) Z "*) n=$((n+1));; esac; done; echo $n`)
			return o.Stdout == "0\n"
		}, 60*time.Second, time.Millisecond)
	})
}
