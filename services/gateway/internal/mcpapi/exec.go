package mcpapi

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/transcript"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

const (
	// maxLine is the most characters of a command line, maxStdin of what a command reads.
	maxLine, maxStdin = 120 << 10, 512 << 10
	// headBytes and tailBytes are what a result shows of each stream.
	headBytes, tailBytes = 24 << 10, 40 << 10
	// cancelWait bounds the cancelling of a command whose call was cancelled.
	cancelWait = 10 * time.Second
	headerExec = "sandtrail-exec-id"
)

// Why a call is over.
var (
	// errStopping: this program ends. What runs goes on.
	errStopping = errors.New("the server is stopping")
	// errBackground ends the following of a command that was accepted.
	errBackground = errors.New("it runs in the background")
)

// common are the arguments of every tool that runs something.
type common struct {
	SandboxID      string            `json:"sandbox_id" jsonschema:"id that create_sandbox gave"`
	WorkingDir     string            `json:"working_dir,omitempty" jsonschema:"directory to run in, relative to the workspace; the workspace unless set"`
	Env            map[string]string `json:"env,omitempty" jsonschema:"environment variables; values are never logged"`
	TimeoutSeconds int64             `json:"timeout_seconds,omitempty" jsonschema:"after this long it is ended; one hour unless set"`
	Background     bool              `json:"background,omitempty" jsonschema:"answer as soon as it is accepted: get_execution tells how it goes on"`
	IdempotencyKey string            `json:"idempotency_key,omitempty" jsonschema:"the same key with the same arguments runs once and gives the same answer"`
}

type commandIn struct {
	common
	Command string `json:"command" jsonschema:"line for /bin/sh"`
	Stdin   string `json:"stdin,omitempty" jsonschema:"what the command reads; nothing unless set"`
}

type pythonIn struct {
	common
	Code string `json:"code" jsonschema:"Python program; what it prints is the answer. Each call is a process of its own."`
}

type executionIn struct {
	SandboxID    string `json:"sandbox_id" jsonschema:"id that create_sandbox gave"`
	ExecutionID  string `json:"execution_id" jsonschema:"id that run_command or run_python gave"`
	WaitSeconds  int64  `json:"wait_seconds,omitempty" jsonschema:"wait that long for its end; not at all unless set"`
	StdoutOffset uint64 `json:"stdout_offset,omitempty" jsonschema:"first byte of stdout to show"`
	StderrOffset uint64 `json:"stderr_offset,omitempty" jsonschema:"first byte of stderr to show"`
	MaxBytes     int64  `json:"max_bytes,omitempty" jsonschema:"how much of each stream to show from its offset on; without it the beginning and the end"`
}

type cancelIn struct {
	SandboxID   string `json:"sandbox_id" jsonschema:"id that create_sandbox gave"`
	ExecutionID string `json:"execution_id" jsonschema:"id that run_command or run_python gave"`
}

// execution is what an agent gets of a command, while it runs and behind its end.
type execution struct {
	ExecutionID string   `json:"execution_id"`
	SandboxID   string   `json:"sandbox_id"`
	State       string   `json:"state" jsonschema:"accepted, running, exited, signaled, timed_out, cancelled, start_failed, or unknown: then it may have run, so do not simply run it again"`
	ExitCode    *int32   `json:"exit_code" jsonschema:"null unless it has ended and how is known"`
	Signal      int32    `json:"signal,omitempty"`
	Message     string   `json:"message,omitempty"`
	DurationMS  *float64 `json:"duration_ms"`
	Stdout      output   `json:"stdout"`
	Stderr      output   `json:"stderr"`
}

func execTools(t *Tools) error {
	renamed := names{"args": "command", "command": "command", "timeout": "timeout_seconds", "idempotency-key": "idempotency_key"}
	err := add(t, &mcp.Tool{
		Name: "run_command", Annotations: changes("Run a command", true, false),
		Description: "Run a shell command in a sandbox and answer its exit code and output. Cancelling the call ends the command.",
	}, renamed, func(c *call, in commandIn) (execution, error) {
		return c.run(in.common, &computev1.ExecCommandRequest{Command: "/bin/sh", Args: []string{"-c", in.Command}, Stdin: []byte(in.Stdin)})
	})
	if err != nil {
		return err
	}
	err = add(t, &mcp.Tool{
		Name: "run_python", Annotations: changes("Run Python", true, false),
		Description: "Run a Python program in a sandbox and answer its exit code and output. Its standard input is the program itself.",
	}, names{"stdin": "code", "timeout": "timeout_seconds", "idempotency-key": "idempotency_key"}, func(c *call, in pythonIn) (execution, error) {
		return c.run(in.common, &computev1.ExecCommandRequest{Command: "python3", Args: []string{"-"}, Stdin: []byte(in.Code)})
	})
	if err != nil {
		return err
	}
	err = add(t, &mcp.Tool{
		Name: "get_execution", Annotations: reads("Look at a command"),
		Description: "Tell how a command stands and show its output, whether it runs or has ended, also when its sandbox is gone.",
	}, names{"exec_id": "execution_id"}, (*call).look)
	if err != nil {
		return err
	}
	return add(t, &mcp.Tool{
		Name: "cancel_execution", Annotations: changes("End a command", true, true),
		Description: "End a command and every process that it started. One that has ended is left as it is.",
	}, names{"exec_id": "execution_id"}, func(c *call, in cancelIn) (execution, error) {
		_, err := try(c.ctx, cancelling(c.opt.API), &computev1.CancelExecRequest{SandboxId: in.SandboxID, ExecId: in.ExecutionID})
		if err != nil {
			return execution{}, err
		}
		return c.look(executionIn{SandboxID: in.SandboxID, ExecutionID: in.ExecutionID, WaitSeconds: int64(cancelWait.Seconds())})
	})
}

func cancelling(api computev1.ComputeServiceClient) func(context.Context, *computev1.CancelExecRequest) (*computev1.CancelExecResponse, error) {
	return unary(api.CancelExec)
}

// following is a command that a call follows.
type following struct {
	*call
	req        *computev1.ExecCommandRequest
	id         string
	out, err   window
	progress   *progress
	background bool
}

// run runs a command to its end, or until it is accepted where it is one for the background.
func (c *call) run(in common, req *computev1.ExecCommandRequest) (execution, error) {
	req.SandboxId, req.WorkingDir, req.Env, req.Detach = in.SandboxID, in.WorkingDir, in.Env, in.Background
	if in.TimeoutSeconds > 0 {
		req.Timeout = durationpb.New(time.Duration(in.TimeoutSeconds) * time.Second)
	}
	f := &following{
		call: c, req: req, background: in.Background, progress: newProgress(c),
		out: window{name: transcript.Stdout, headMost: headBytes, tailMost: tailBytes},
		err: window{name: transcript.Stderr, headMost: headBytes, tailMost: tailBytes},
	}
	defer f.progress.stop()
	end, err := c.opt.Run(c.ctx, req, cmp.Or(in.IdempotencyKey, ids.New()), f.accepted, f.event)
	switch {
	case err == nil:
		return f.shown("", end), nil
	case errors.Is(err, errBackground):
		return f.shown("accepted", nil), nil
	case lost(err):
		x := f.shown("unknown", nil)
		x.Message = fault.FromStatus(err).Message
		return x, nil
	case c.ctx.Err() != nil:
		f.cancel()
	case f.id != "":
		told := *fault.FromStatus(err)
		told.Message += "; execution " + f.id + " was accepted: get_execution tells what became of it"
		return execution{}, &told
	}
	return execution{}, err
}

func (f *following) accepted(id string) error {
	f.id = id
	if f.background {
		return errBackground
	}
	return nil
}

func (f *following) event(e *computev1.ExecEvent) error {
	switch b := e.GetEvent().(type) {
	case *computev1.ExecEvent_Stdout:
		f.out.add(e.GetOffset(), b.Stdout.GetData())
		f.progress.add(b.Stdout.GetData())
	case *computev1.ExecEvent_Stderr:
		f.err.add(e.GetOffset(), b.Stderr.GetData())
		f.progress.add(b.Stderr.GetData())
	case *computev1.ExecEvent_Gap:
		if b.Gap.GetStream() == transcript.Stderr {
			f.err.gap(b.Gap.GetFrom(), b.Gap.GetTo())
		} else {
			f.out.gap(b.Gap.GetFrom(), b.Gap.GetTo())
		}
	case *computev1.ExecEvent_Completed:
		f.id = b.Completed.GetExecId()
	}
	return nil
}

// cancel ends a command whose call was cancelled, by the client or by the end of its session. One whose server stops goes on.
func (f *following) cancel() {
	if f.id == "" || errors.Is(context.Cause(f.ctx), errStopping) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.ctx), cancelWait)
	defer cancel()
	_, err := try(ctx, cancelling(f.opt.API), &computev1.CancelExecRequest{SandboxId: f.req.GetSandboxId(), ExecId: f.id})
	if err != nil {
		f.opt.Log.WarnContext(ctx, "a command whose call was cancelled could not be", "exec", f.id, "error", err, "correlation_id", f.correlation)
	}
}

// shown is the command as far as it was followed.
func (f *following) shown(state string, end *computev1.ExecCompleted) execution {
	x := execution{ExecutionID: f.id, SandboxID: f.req.GetSandboxId(), State: state}
	if end != nil {
		x.State, x.Message, x.Signal = ended(end.GetReason()), end.GetMessage(), end.GetSignal()
		x.ExitCode = pointer(end.GetExitCode())
		x.DurationMS = pointer(float64(end.GetWallTime().AsDuration().Microseconds()) / 1000)
	}
	x.Stdout, x.Stderr = f.out.shown(end.GetStdout().GetBytes()), f.err.shown(end.GetStderr().GetBytes())
	return x
}

// ended is the state behind an observed end, as over HTTP.
func ended(reason string) string {
	switch reason {
	case "oom_killed":
		return "signaled"
	case "output_limit", "sandbox_destroyed", "sandbox_stopped":
		return "cancelled"
	default:
		return reason
	}
}

// once is the Runner of who needs no other: one stream, whose end is the end.
func (t *Tools) once(
	ctx context.Context, req *computev1.ExecCommandRequest, key string, accepted func(string) error, each func(*computev1.ExecEvent) error,
) (*computev1.ExecCompleted, error) {
	ctx, cancel := context.WithCancel(withKey(ctx, key))
	defer cancel()
	stream, err := t.opt.API.ExecCommand(ctx, req)
	if err != nil {
		return nil, err
	}
	if head, err := stream.Header(); err == nil && len(head.Get(headerExec)) > 0 {
		if err := accepted(head.Get(headerExec)[0]); err != nil {
			return nil, err
		}
	}
	for {
		e, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		if err := each(e); err != nil {
			return nil, err
		}
		if end := e.GetCompleted(); end != nil {
			return end, nil
		}
	}
}
