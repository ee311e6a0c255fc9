package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// execTimeout bounds one command.
const execTimeout = 10 * time.Minute

// Result is the end of an exec.
type Result struct {
	ID        string
	Completed *computev1.ExecCompleted
	// At is when the end arrived.
	At time.Time
}

// Exec runs a command through gRPC, gives standard output to each piece by piece (nil drops it), each piece good until it returns, and returns its end. An exit
// code other than 0, a gap, or output on standard error is an error.
func (u *Up) Exec(ctx context.Context, sandbox string, each func([]byte) error, command string, args ...string) (Result, error) {
	var r Result
	stream, err := u.API.ExecCommand(ctx, &computev1.ExecCommandRequest{
		SandboxId: sandbox, Command: command, Args: args, Timeout: durationpb.New(execTimeout),
	})
	if err != nil {
		return r, err
	}
	e := &computev1.ExecEvent{}
	for {
		err := stream.RecvMsg(e)
		switch {
		case errors.Is(err, io.EOF) && r.Completed != nil:
			return r, nil
		case errors.Is(err, io.EOF):
			return r, errors.New("the stream ended without an end of the command")
		case err != nil:
			return r, err
		}
		switch v := e.GetEvent().(type) {
		case *computev1.ExecEvent_Stdout:
			if each != nil {
				if err := each(v.Stdout.GetData()); err != nil {
					return r, err
				}
			}
		case *computev1.ExecEvent_Stderr:
			return r, fmt.Errorf("standard error: %.200s", v.Stderr.GetData())
		case *computev1.ExecEvent_Gap:
			return r, fmt.Errorf("bytes %d to %d of the output were dropped", v.Gap.GetFrom(), v.Gap.GetTo())
		case *computev1.ExecEvent_Completed:
			r.At, r.Completed, r.ID = time.Now(), v.Completed, v.Completed.GetExecId()
			if v.Completed.GetExitCode() != 0 {
				return r, fmt.Errorf("exit code %d (%s) %s", v.Completed.GetExitCode(), v.Completed.GetReason(), v.Completed.GetMessage())
			}
		}
	}
}
