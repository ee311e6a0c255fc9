package usecase

import (
	"context"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// stdinWait bounds how long a write to a standard input waits for a command that does not read.
const stdinWait = 20 * time.Second

// Stdin writes to the standard input of an exec that was started with it open, and with eof closes it behind data. offset says where data
// stands in it: what of that was taken before is not written again, so a write may be repeated. It returns how much was taken in all, which is
// less than all where the command does not read on: write the rest again, from there.
func (u *UseCases) Stdin(ctx context.Context, p principal.Principal, sandboxID, execID string, offset uint64, data []byte, eof bool) (uint64, error) {
	if err := p.Need(scopes.Execute); err != nil {
		return 0, err
	}
	x, err := u.exec(ctx, p, sandboxID, execID)
	switch {
	case err != nil:
		return 0, err
	case x.Over():
		return 0, fault.New(fault.FailedPrecondition, fault.ReasonIllegalState, "the command has ended")
	case !x.Spec.GetKeepStdin():
		return 0, fault.New(fault.FailedPrecondition, fault.ReasonIllegalState, "the command was started without keep_stdin")
	case x.Worker == "":
		return 0, notStarted()
	}
	s := sandbox.Sandbox{Tenant: x.Tenant, ID: x.Sandbox, Worker: x.Worker}
	end := offset + uint64(len(data))
	wait, cancel := context.WithTimeout(ctx, stdinWait)
	defer cancel()
	for {
		reply, err := u.fileCall(wait, s, &commandsv1.FileCall{Call: &commandsv1.FileCall_Stdin{
			Stdin: &commandsv1.StdinCall{ExecId: execID, Offset: offset, Data: data, Eof: eof},
		}})
		switch {
		case fault.Is(err, fault.ReasonExecNotFound):
			return 0, notStarted()
		case err != nil && wait.Err() != nil && ctx.Err() == nil:
			return offset, nil // what else was taken is not taken again
		case err != nil:
			return 0, err
		}
		taken := reply.GetStdinOffset()
		if taken >= end || wait.Err() != nil {
			return taken, nil
		}
		if taken > offset {
			data, offset = data[taken-offset:], taken
		}
	}
}

// notStarted: the exec is on its way to its program.
func notStarted() error {
	return fault.New(fault.Unavailable, fault.ReasonToolboxUnavailable, "the command is not running yet; try again").WithRetry(time.Second)
}
