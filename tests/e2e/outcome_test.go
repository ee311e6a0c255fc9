package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
	"github.com/sandtrail/sandtrail/toolbox/client"
)

func TestOutcomeOfACommand(t *testing.T) {
	needsHost(t)
	s := stack.Up(t)
	sandbox := s.Ready(t)
	request := func(command string, args ...string) *computev1.ExecCommandRequest {
		return &computev1.ExecCommandRequest{SandboxId: sandbox, Command: command, Args: args}
	}

	t.Run("is the program's exit code, or 128 and its signal", func(t *testing.T) {
		for script, want := range map[string]int32{"exit 0": 0, "exit 1": 1, "exit 42": 42, "exit 255": 255, "kill -TERM $$": 143, "kill -9 $$": 137, "kill -SEGV $$": 139} {
			end := s.Sh(t, sandbox, script).Completed
			require.Equal(t, want, end.GetExitCode(), script)
			require.False(t, end.GetCancelled(), script)
			signal := max(0, want-128)
			if strings.HasPrefix(script, "exit") {
				signal = 0
			}
			require.Equal(t, signal, end.GetSignal(), script)
		}
	})

	t.Run("is 127 for a command that is not there and 126 for one that cannot run", func(t *testing.T) {
		require.Zero(t, s.Sh(t, sandbox, "echo text > plain; chmod 644 plain").Completed.GetExitCode())
		for command, want := range map[string]int32{"no-such-command": 127, "/no/such/command": 127, "/workspace/plain": 126, "/workspace": 126} {
			end := s.Exec(t, sandbox, command).Completed
			require.Equal(t, want, end.GetExitCode(), command)
			require.Equal(t, "start_failed", end.GetReason(), command)
			require.NotEmpty(t, end.GetMessage(), command)
		}
	})

	t.Run("is cancelled with the output so far when its time is over", func(t *testing.T) {
		req := request("sh", "-c", "echo before; sleep 600; echo after")
		req.Timeout = durationpb.New(time.Second)
		r := s.Run(t, req)
		require.Equal(t, "before\n", string(r.Stdout))
		require.True(t, r.Completed.GetCancelled())
		require.Equal(t, "timed_out", r.Completed.GetReason())
		require.InDelta(t, 1, r.Completed.GetWallTime().AsDuration().Seconds(), 1)
	})

	t.Run("is cancelled with its whole tree, children in other sessions too", func(t *testing.T) {
		r := s.Begin(t, len("ready\n"), request("sh", "-c", `
			setsid sh -c 'trap "" TERM; while :; do sleep 7001; done' & (setsid sleep 7002 &) & trap "" TERM
			while [ $(pgrep -c -f 'sleep 700') -lt 2 ]; do sleep 0.1; done
			echo ready; sleep 7003; sleep 7004`))
		_, err := s.API.CancelExec(t.Context(), &computev1.CancelExecRequest{ExecId: r.ID})
		require.NoError(t, err)
		s.Finish(t, &r)
		require.True(t, r.Completed.GetCancelled())
		require.Equal(t, "cancelled", r.Completed.GetReason())
		left := s.Sh(t, sandbox, `for p in /proc/[0-9]*; do tr '\0' ' ' < $p/cmdline 2>/dev/null; echo; done | grep '^sleep 700'`)
		require.Empty(t, string(left.Stdout))
	})

	t.Run("does not wait for children left in the background", func(t *testing.T) {
		begin := time.Now()
		r := s.Sh(t, sandbox, "sleep 600 & echo hi")
		require.Equal(t, "hi\n", string(r.Stdout))
		require.Equal(t, "exited", r.Completed.GetReason())
		require.Less(t, time.Since(begin), 3*time.Second)
	})

	t.Run("has the bytes of a random megabyte, and their digest", func(t *testing.T) {
		data := make([]byte, 1<<20)
		_, err := rand.Read(data)
		require.NoError(t, err)
		_, err = s.API.WriteFile(t.Context(), &computev1.WriteFileRequest{SandboxId: sandbox, Path: "random", Data: data})
		require.NoError(t, err)
		r := s.Sh(t, sandbox, "cat random; cat random >&2")
		require.True(t, bytes.Equal(data, r.Stdout), "stdout")
		require.True(t, bytes.Equal(data, r.Stderr), "stderr")
		want := sha256.Sum256(data)
		receipt := s.Receipt(t, r.ID).GetCompleted()
		for _, digest := range []*computev1.OutputDigest{r.Completed.GetStdout(), r.Completed.GetStderr(), receipt.GetStdout(), receipt.GetStderr()} {
			require.Equal(t, want[:], digest.GetSha256())
			require.Equal(t, uint64(len(data)), digest.GetBytes())
			require.Zero(t, digest.GetDroppedBytes())
		}
	})

	t.Run("reads the stdin that it was given, then its end", func(t *testing.T) {
		data := make([]byte, 300_000)
		_, err := rand.Read(data)
		require.NoError(t, err)
		req := request("cat")
		req.Stdin = data
		require.True(t, bytes.Equal(data, s.Run(t, req).Stdout))
		require.Empty(t, s.Exec(t, sandbox, "cat").Stdout, "without stdin a command reads its end at once")
	})

	t.Run("has every byte of a flood while somebody takes it", func(t *testing.T) {
		r := s.Sh(t, sandbox, "yes | head -c 200M")
		require.Zero(t, r.Completed.GetExitCode())
		requireFlood(t, r, 200<<20)
		require.Empty(t, r.Gaps)
	})

	t.Run("is the same whoever reads it later", func(t *testing.T) {
		r := s.Sh(t, sandbox, "echo one; echo two >&2; exit 3")
		again := stack.Result{ID: r.ID}
		s.Finish(t, &again)
		require.Equal(t, r.Stdout, again.Stdout)
		require.Equal(t, r.Stderr, again.Stderr)
		require.Equal(t, r.Completed.GetUsageEventId(), again.Completed.GetUsageEventId())
		require.Equal(t, int32(3), s.Receipt(t, r.ID).GetCompleted().GetExitCode())
	})
}

func TestOutcomeWhenTheSandboxEnds(t *testing.T) {
	needsHost(t)
	s := stack.Up(t)
	forever := func(sandbox string) *computev1.ExecCommandRequest {
		return &computev1.ExecCommandRequest{SandboxId: sandbox, Command: "sh", Args: []string{"-c", "echo begun; sleep 600"}}
	}

	t.Run("a destroy settles what runs at once and says so", func(t *testing.T) {
		sandbox := s.Ready(t)
		r := s.Begin(t, len("begun\n"), forever(sandbox))
		begin := time.Now()
		s.Destroy(t, sandbox)
		s.Finish(t, &r)
		require.Less(t, time.Since(begin), 10*time.Second)
		require.Equal(t, "sandbox_destroyed", r.Completed.GetReason())
		require.NotZero(t, r.Completed.GetExitCode(), "who looks at the exit code only must not take it for a success")
		require.Equal(t, "begun\n", string(r.Stdout))
		require.Equal(t, []string{"ExecStarted", "ExecCompleted"}, s.ExecEvents(t, sandbox, r.ID))
	})

	t.Run("a killed keeper makes it lost, never an exit code", func(t *testing.T) {
		sandbox := s.Ready(t)
		r := s.Begin(t, len("begun\n"), forever(sandbox))
		require.NoError(t, syscall.Kill(keeperOf(t, s, sandbox), syscall.SIGKILL))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		stream, err := s.API.AttachExec(ctx, &computev1.AttachExecRequest{ExecId: r.ID, AfterChunk: r.LastChunk})
		require.NoError(t, err)
		require.Equal(t, codes.DataLoss, status.Code(r.Read(stream)))
		require.Nil(t, r.Completed)
		receipt := s.Receipt(t, r.ID)
		require.Equal(t, "lost", receipt.GetState())
		require.NotEmpty(t, receipt.GetLostReason())
		require.Nil(t, receipt.GetCompleted())
		require.Equal(t, []string{"ExecStarted", "ExecLost"}, s.ExecEvents(t, sandbox, r.ID))
		require.Eventually(t, func() bool {
			return s.Describe(t, sandbox).GetStatus() == computev1.SandboxStatus_SANDBOX_STATUS_FAILED
		}, 30*time.Second, 100*time.Millisecond)
		require.NotEmpty(t, s.Describe(t, sandbox).GetDetail().GetReason())
		require.Eventually(t, func() bool { return len(loopsOf(t, filepath.Join(s.State, "workspaces", sandbox))) == 0 }, 30*time.Second,
			100*time.Millisecond, "a lost sandbox leaves nothing mounted")
	})

	t.Run("a command behind the create waits for the sandbox, twenty at once", func(t *testing.T) {
		var wait sync.WaitGroup
		ids, outputs := make([]string, 20), make([]string, 20)
		for i := range ids {
			wait.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				box, err := s.API.CreateSandbox(ctx, &computev1.CreateSandboxRequest{TenantId: "acme", Image: stack.Image})
				if err != nil {
					outputs[i] = err.Error()
					return
				}
				ids[i] = box.GetSandboxId()
				stream, err := s.API.ExecCommand(ctx, &computev1.ExecCommandRequest{SandboxId: ids[i], Command: "echo", Args: []string{strconv.Itoa(i)}})
				if err != nil {
					outputs[i] = err.Error()
					return
				}
				var r stack.Result
				if err := r.Read(stream); err != nil {
					outputs[i] = err.Error()
					return
				}
				outputs[i] = fmt.Sprintf("%s%d", r.Stdout, r.Completed.GetExitCode())
			})
		}
		wait.Wait()
		for i, out := range outputs {
			require.Equal(t, fmt.Sprintf("%d\n0", i), out)
		}
		for _, id := range ids {
			s.Destroy(t, id)
		}
	})
}

// keeperOf is the process that holds a sandbox.
func keeperOf(t *testing.T, s *stack.Stack, sandbox string) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(s.State, "sandboxes", sandbox, "keeper.pid"))
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	require.NoError(t, err)
	return pid
}

// requireFlood checks an output of n bytes in all: each is there or in a gap, and the digest is of what is there.
func requireFlood(t *testing.T, r stack.Result, n int) {
	t.Helper()
	digest := r.Completed.GetStdout()
	require.Equal(t, uint64(n), digest.GetBytes())
	require.Equal(t, n-len(r.Stdout), int(digest.GetDroppedBytes()))
	var gaps uint64
	for _, g := range r.Gaps {
		gaps += g.GetTo() - g.GetFrom()
	}
	require.Equal(t, digest.GetDroppedBytes(), gaps)
	sum := sha256.Sum256(r.Stdout)
	require.Equal(t, sum[:], digest.GetSha256())
}

func TestOutputThatNobodyTakesIsCappedAndTheGapTold(t *testing.T) {
	needsHost(t)
	s := stack.Processes(t)
	sandbox := s.Ready(t)
	const head, flood, tail = "begun\n", 100 << 20, "ended\n"
	r := s.Begin(t, len(head), &computev1.ExecCommandRequest{
		SandboxId: sandbox, Command: "sh", Args: []string{"-c", "echo begun; sleep 1; yes | head -c 100M; echo ended"},
	})
	s.Kill("exec")
	toolbox := client.New(client.KeeperDialer(s.State, sandbox), "")
	require.Eventually(t, func() bool {
		list, err := toolbox.List(t.Context(), &toolboxv1.List{})
		require.NoError(t, err)
		for _, x := range list.GetExecs() {
			if x.GetExecId() == r.ID {
				return x.GetEnd() != nil
			}
		}
		return false
	}, time.Minute, 100*time.Millisecond, "a program whose output nobody takes goes on to its end")
	s.Respawn("exec")
	s.Finish(t, &r)
	require.Zero(t, r.Completed.GetExitCode())
	requireFlood(t, r, len(head)+flood+len(tail))
	require.Len(t, r.Gaps, 1)
	require.Less(t, len(r.Stdout), 20<<20)
	require.True(t, bytes.HasPrefix(r.Stdout, []byte(head+"y\ny\n")))
	require.True(t, bytes.HasSuffix(r.Stdout, []byte("y\ny\n"+tail)))
}
