package cli_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
	"github.com/sandtrail/sandtrail/libs/fault"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// recording is an exec's events with bytes of every kind on both streams, and what they add up to.
func recording(exit int32) (events []*computev1.ExecEvent, stdout, stderr string) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	for n := uint64(1); n <= 6; n++ {
		data := append(fmt.Appendf(nil, "%d\r\n", n), every[:40*n]...)
		e := &computev1.ExecEvent{Chunk: n}
		if n%3 == 0 {
			e.Event = &computev1.ExecEvent_Stderr{Stderr: &computev1.StderrLine{Data: data}}
			stderr += string(data)
		} else {
			e.Event = &computev1.ExecEvent_Stdout{Stdout: &computev1.StdoutLine{Data: data}}
			stdout += string(data)
		}
		events = append(events, e)
		if n == 4 {
			events = append(events, &computev1.ExecEvent{Event: &computev1.ExecEvent_Heartbeat{Heartbeat: &computev1.Heartbeat{}}})
		}
	}
	return append(events, &computev1.ExecEvent{Event: &computev1.ExecEvent_Completed{Completed: &computev1.ExecCompleted{
		ExecId: xid, ExitCode: exit, Reason: "exited", Stdout: digestOf(stdout), Stderr: digestOf(stderr),
	}}}), stdout, stderr
}

func digestOf(s string) *computev1.OutputDigest {
	sum := sha256.Sum256([]byte(s))
	return &computev1.OutputDigest{Bytes: uint64(len(s)), Sha256: sum[:]}
}

func TestExecIsByteExactWhereverItIsCut(t *testing.T) {
	events, stdout, stderr := recording(7)
	cuts := map[string]error{
		"unavailable":           status.Error(codes.Unavailable, "gone"),
		"end without an end":    nil,
		"transport's own":       status.Error(codes.Internal, "RST_STREAM"),
		"gateway ends":          failure(fault.Cancelled, fault.ReasonCancelled, "the caller went away", nil),
		"worker is slow to ask": failure(fault.Unavailable, fault.ReasonWorkerUnavailable, "attach to it", nil),
	}
	for name, cut := range cuts {
		t.Run(name, func(t *testing.T) {
			for at := range events {
				f := newFake(t)
				f.events = events
				// Cut twice: the second stream brings one event more.
				f.streams = []piece{{send: at, err: cut, header: true}, {send: 1, err: cut, header: true}}
				r := f.run(t, "exec", box, "--", "prog", "-x")
				require.Equal(t, stdout, r.stdout, "cut after %d events", at)
				require.Equal(t, stderr, r.stderr, "cut after %d events", at)
				require.Equal(t, 7, r.code)
				require.Equal(t, 1, f.count("ExecCommand"), "a command that was accepted is never sent again")
			}
		})
	}
}

func TestExecIsRepeatedWithItsKeyUntilItIsAccepted(t *testing.T) {
	f := newFake(t)
	events, stdout, _ := recording(0)
	f.events = events
	gone := status.Error(codes.Unavailable, "gone")
	f.streams = []piece{{err: gone}, {err: gone}}
	r := f.run(t, "exec", box, "true")
	require.Equal(t, 0, r.code)
	require.Equal(t, stdout, r.stdout)
	keys := f.header("ExecCommand", "idempotency-key")
	require.Len(t, keys, 3)
	require.NotEmpty(t, keys[0])
	require.Len(t, f.starts, 1, "one key for all of them: %v", keys)
}

func TestExecWaitsForAnExecThatIsOnItsWay(t *testing.T) {
	f := newFake(t)
	events, stdout, _ := recording(0)
	f.events = events
	f.streams = []piece{
		{err: status.Error(codes.Unavailable, "gone"), header: true},
		{err: failure(fault.NotFound, fault.ReasonExecNotFound, "not there yet", nil)},
	}
	r := f.run(t, "exec", box, "true")
	require.Equal(t, result{0, stdout, r.stderr}, r)
}

func TestExecSurvivesARestartOfTheServer(t *testing.T) {
	f := newFake(t)
	events, stdout, stderr := recording(3)
	f.events, f.hold = events, make(chan struct{})
	restarted := make(chan error, 1)
	go func() {
		for f.count("ExecCommand") == 0 {
			runtime.Gosched()
		}
		f.server.Stop()
		l, err := net.Listen("tcp", f.addr)
		if err == nil {
			f.mu.Lock()
			f.hold = nil
			f.mu.Unlock()
			f.serve(l)
		}
		restarted <- err
	}()
	r := f.run(t, "exec", box, "true")
	require.NoError(t, <-restarted)
	require.Equal(t, result{3, stdout, stderr}, r)
	require.Len(t, f.starts, 1, "whenever the server went away, it was asked for the same exec")
}

func TestExecTakesNoChunkTwiceAndLeavesNoneOut(t *testing.T) {
	f := newFake(t)
	events, stdout, _ := recording(0)
	f.events = events
	odd := []*computev1.ExecEvent{events[0], events[1], events[0], events[1], events[3]}
	f.streams = []piece{{send: len(odd), header: true, events: odd}}
	r := f.run(t, "exec", box, "true")
	require.Equal(t, 0, r.code)
	require.Equal(t, stdout, r.stdout)
	require.Equal(t, []uint64{2}, f.after, "a chunk was left out: attach in front of it")

	f.streams = nil
	f.events = odd
	r = f.run(t, "exec", "--reconnect=300ms", box, "true")
	require.Equal(t, cli.ExitUnknown, r.code, "a server that always leaves it out is given up")
}

func TestExecOutcomeUnknown(t *testing.T) {
	events, _, _ := recording(0)
	gone := piece{send: 2, err: status.Error(codes.Unavailable, "gone"), header: true}
	t.Run("the server stays away", func(t *testing.T) {
		f := newFake(t)
		f.events, f.streams = events, []piece{gone}
		f.fail = func(method string, _ int) error {
			if method == "AttachExec" {
				return status.Error(codes.Unavailable, "away")
			}
			return nil
		}
		r := f.run(t, "exec", "--reconnect=300ms", box, "true")
		require.Equal(t, cli.ExitUnknown, r.code)
		require.Contains(t, r.stderr, xid)
	})
	t.Run("the exec is lost", func(t *testing.T) {
		f := newFake(t)
		f.events = events
		f.streams = []piece{{send: 2, header: true, err: failure(fault.Lost, fault.ReasonExecLost, "the outcome is not known", nil)}}
		r := f.run(t, "exec", box, "true")
		require.Equal(t, cli.ExitUnknown, r.code)
		require.Zero(t, f.count("AttachExec"), "what is lost is not asked for again")
	})
}

func TestExecInterrupts(t *testing.T) {
	events, stdout, _ := recording(143)
	events[len(events)-1].GetCompleted().Cancelled = true
	events[len(events)-1].GetCompleted().Reason = "cancelled"
	t.Run("the first ends the command", func(t *testing.T) {
		f := newFake(t)
		f.events, f.hold = events, make(chan struct{})
		signals := make(chan os.Signal, 1)
		signals <- os.Interrupt
		r := f.runWith(t, nil, signals, "exec", box, "sleep", "100")
		require.Equal(t, 143, r.code)
		require.Equal(t, stdout, r.stdout, "output up to its end")
		require.Equal(t, 1, f.count("CancelExec"))
		require.Contains(t, r.stderr, "the command ended: cancelled")
	})
	t.Run("the second leaves", func(t *testing.T) {
		f := newFake(t)
		f.events, f.hold = events, make(chan struct{})
		f.fail = func(method string, _ int) error {
			if method == "CancelExec" {
				return failure(fault.Internal, fault.ReasonInternal, "no", nil)
			}
			return nil
		}
		signals := make(chan os.Signal, 2)
		signals <- os.Interrupt
		signals <- os.Interrupt
		r := f.runWith(t, nil, signals, "exec", box, "sleep", "100")
		require.Equal(t, cli.ExitCancelled, r.code)
	})
}

func TestExecRequest(t *testing.T) {
	f := newFake(t)
	f.events, _, _ = recording(0)
	t.Setenv("FROM_HERE", "secret-1")
	r := f.runWith(t, []byte("input"), nil, "exec", "-i", "--env", "A=x=1,2", "--env", "FROM_HERE", "--workdir", "sub", "--timeout", "3s",
		"--idempotency-key", "k-1", strings.ToUpper(box), "--", "python3", "--output", "json", "--", "-c")
	require.Equal(t, 0, r.code)
	req := f.execs[0]
	require.Equal(t, "python3", req.GetCommand())
	require.Equal(t, []string{"--output", "json", "--", "-c"}, req.GetArgs(), "what is behind -- is the command's")
	require.Equal(t, map[string]string{"A": "x=1,2", "FROM_HERE": "secret-1"}, req.GetEnv())
	require.Equal(t, "input", string(req.GetStdin()))
	require.Equal(t, "sub", req.GetWorkingDir())
	require.Equal(t, 3*time.Second, req.GetTimeout().AsDuration())
	require.Equal(t, box, req.GetSandboxId())
	require.Equal(t, []string{"k-1"}, f.header("ExecCommand", "idempotency-key"))

	most := make([]byte, 512<<10)
	require.Equal(t, 0, f.runWith(t, most, nil, "exec", "-i", box, "cat").code)
	require.Len(t, f.execs[1].GetStdin(), len(most))
	require.Equal(t, cli.ExitUsage, f.runWith(t, append(most, 0), nil, "exec", "-i", box, "cat").code)
	require.Len(t, f.execs, 2)
}

func TestExecDetach(t *testing.T) {
	f := newFake(t)
	f.events, f.hold = nil, make(chan struct{})
	f.events, _, _ = recording(0)
	require.Equal(t, result{0, xid + "\n", ""}, f.run(t, "exec", "-d", box, "true"))
	require.True(t, f.execs[0].GetDetach())
}

func TestExecJSON(t *testing.T) {
	f := newFake(t)
	f.events, _, _ = recording(5)
	r := f.run(t, "exec", "-o", "json", box, "true")
	require.Equal(t, 5, r.code)
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	require.Len(t, lines, 7, "six chunks and the end")
	var last struct {
		Completed struct {
			ExitCode int    `json:"exit_code"`
			ExecID   string `json:"exec_id"`
		} `json:"completed"`
	}
	require.NoError(t, json.Unmarshal([]byte(lines[6]), &last))
	require.Equal(t, 5, last.Completed.ExitCode)
	require.Equal(t, xid, last.Completed.ExecID)
	require.Empty(t, r.stderr)
}

// What a limit did is said on standard error, once, and never as a byte of output.
func TestExecTellsTheLimitsThatItMet(t *testing.T) {
	f := newFake(t)
	events, stdout, stderr := recording(1)
	f.events = events
	end := events[len(events)-1].GetCompleted()
	end.Message = "its time of 2s was over"
	end.Limits = []*commonv1.LimitHit{
		{Limit: "time", Message: "its time of 2s was over"}, {Limit: "cpu", Message: "it was held back"}, {Limit: "disk", Message: "the workspace was\x1b full"},
	}
	r := f.run(t, "exec", box, "true")
	require.Equal(t, stdout, r.stdout)
	require.Contains(t, r.stderr, stderr)
	require.Contains(t, r.stderr, "limit met (disk): the workspace was? full")
	require.Equal(t, 1, strings.Count(r.stderr, "its time of 2s was over"))
	require.NotContains(t, r.stderr, "held back", "a busy command meets it as a rule")
	r = f.run(t, "exec", "-o", "json", box, "true")
	require.Contains(t, r.stdout, "held back")
	require.NotContains(t, r.stderr, "limit met")
}

func TestReplayExec(t *testing.T) {
	f := newFake(t)
	events, stdout, stderr := recording(9)
	f.events = events
	f.streams = []piece{{send: 3, header: true, err: status.Error(codes.Unavailable, "gone")}}
	require.Equal(t, result{0, stdout, stderr}, f.run(t, "replay", "exec", xid))
	require.Equal(t, 9, f.run(t, "replay", "exec", "--exit-code", xid).code)
	require.Zero(t, f.count("ExecCommand"))

	f.log = history()
	r := f.run(t, "replay", "exec", "--last", "--sandbox", box)
	require.Equal(t, result{0, stdout, stderr}, r)
	require.Equal(t, cli.ExitUsage, f.run(t, "replay", "exec", "--last").code)
	require.Equal(t, cli.ExitUsage, f.run(t, "replay", "exec").code)
	require.Equal(t, cli.ExitNotFound, f.run(t, "replay", "exec", box).code)

	f.log = f.log[:2]
	require.Equal(t, cli.ExitNotFound, f.run(t, "replay", "exec", "--last", "--sandbox", box).code, "no exec yet")
}

func TestReplayTellsWhatIsMissing(t *testing.T) {
	f := newFake(t)
	events, stdout, _ := recording(0)
	gap := &computev1.ExecEvent{Chunk: 7, Event: &computev1.ExecEvent_Gap{Gap: &computev1.OutputGap{Stream: "stdout", From: 100, To: 2148}}}
	f.events = append(append(events[:7:7], gap), events[7])
	r := f.run(t, "replay", "exec", xid)
	require.Equal(t, 0, r.code)
	require.Equal(t, stdout, r.stdout)
	require.Contains(t, r.stderr, "2.0 KiB of stdout were dropped")

	f.events = append(events[:5:5], &computev1.ExecEvent{Event: events[7].GetEvent()})
	r = f.run(t, "replay", "exec", xid)
	require.Equal(t, cli.ExitFailed, r.code, "what was kept is not what was written")
	require.Contains(t, r.stderr, "digest differs")

	f.streams = []piece{{send: 4, header: true, err: failure(fault.Lost, fault.ReasonExecLost, "the sandbox is lost", nil)}}
	r = f.run(t, "replay", "exec", xid)
	require.Equal(t, 0, r.code, "everything that is recorded was replayed")
	require.Contains(t, r.stderr, "exec_lost")
}
