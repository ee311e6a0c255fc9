package mcpapi

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/transcript"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

const (
	// maxWait is the longest that a look waits for an end: shorter than the minute that clients wait for a tool.
	maxWait = 50 * time.Second
	// quiet ends a look at a command that runs, once nothing came for so long; glance is the longest that it takes.
	quiet, glance = 250 * time.Millisecond, 2 * time.Second
	// wholeBytes is up to how much output a look reads all of it; of more it reads the beginning, and the last endChunks chunks.
	wholeBytes, endChunks = 1 << 20, 16
)

// errSeen ends a look that has what it wants.
var errSeen = errors.New("seen")

// look tells how a command stands.
func (c *call) look(in executionIn) (execution, error) {
	req := &computev1.GetExecRequest{SandboxId: in.SandboxID, ExecId: in.ExecutionID}
	x, err := try(c.ctx, unary(c.opt.API.GetExec), req)
	if err != nil {
		return execution{}, err
	}
	head, tail := headBytes, tailBytes
	if in.MaxBytes > 0 || in.StdoutOffset > 0 || in.StderrOffset > 0 {
		head, tail = int(in.MaxBytes), 0
		if head == 0 {
			head = defaultPage
		}
	}
	f := &following{
		call: c, req: &computev1.ExecCommandRequest{SandboxId: x.GetSandboxId()}, id: x.GetExecId(), progress: newProgress(c),
		out: window{name: transcript.Stdout, from: in.StdoutOffset, headMost: head, tailMost: tail},
		err: window{name: transcript.Stderr, from: in.StderrOffset, headMost: head, tailMost: tail},
	}
	defer f.progress.stop()
	note := ""
	if over(x) {
		err = f.recorded(x, tail > 0)
	} else {
		err = f.live(time.Duration(in.WaitSeconds) * time.Second)
		if err == nil {
			x, err = try(c.ctx, unary(c.opt.API.GetExec), req)
		}
	}
	if f := fault.FromStatus(err); f != nil {
		if f.Reason != fault.ReasonCursorExpired {
			return execution{}, err
		}
		note = "output is no longer kept: " + f.Message
	}
	return f.stands(x, note), nil
}

func over(x *computev1.GetExecResponse) bool {
	return x.GetState() == sandbox.ExecCompleted || x.GetState() == sandbox.ExecLost
}

// stands is a command as its receipt has it.
func (f *following) stands(x *computev1.GetExecResponse, note string) execution {
	state := "running"
	switch x.GetState() {
	case sandbox.ExecRequested:
		state = "accepted"
	case sandbox.ExecLost:
		state = "unknown"
	}
	out := f.shown(state, x.GetCompleted())
	if x.GetState() == sandbox.ExecLost {
		out.Message = "its outcome cannot be known: " + x.GetLostReason()
	}
	if note != "" {
		out.Message = note
	}
	return out
}

// recorded reads what a command that has ended has left: its beginning, and with tail its end.
func (f *following) recorded(x *computev1.GetExecResponse, tail bool) error {
	out, err := x.GetCompleted().GetStdout().GetBytes(), x.GetCompleted().GetStderr().GetBytes()
	known := x.GetCompleted() != nil
	few := known && out+err <= wholeBytes
	seen := f.attach(f.ctx, x, 0, func(e *computev1.ExecEvent) error {
		if known && !few && f.out.full(out) && f.err.full(err) {
			return errSeen
		}
		return f.event(e)
	})
	if !errors.Is(seen, errSeen) || !tail || x.GetLastChunk() <= endChunks {
		return ignore(seen)
	}
	return ignore(f.attach(f.ctx, x, x.GetLastChunk()-endChunks, f.event))
}

// live follows a command that runs: for wait, or until it is quiet.
func (f *following) live(wait time.Duration) error {
	ctx, cancel := context.WithTimeout(f.ctx, max(wait, glance))
	defer cancel()
	idle := time.AfterFunc(max(wait, quiet), cancel)
	defer idle.Stop()
	err := f.attach(ctx, &computev1.GetExecResponse{SandboxId: f.req.GetSandboxId(), ExecId: f.id}, 0, func(e *computev1.ExecEvent) error {
		if wait == 0 {
			idle.Reset(quiet)
		}
		return f.event(e)
	})
	// The other side goes by the same deadline, and may be at it first.
	if over := ctx.Err() != nil || status.Code(err) == codes.DeadlineExceeded; over && f.ctx.Err() == nil {
		return nil // it runs on
	}
	return ignore(err)
}

// ignore passes over what ends a look without being a failure.
func ignore(err error) error {
	if errors.Is(err, errSeen) || lost(err) {
		return nil
	}
	return err
}

// attach gives each event behind a chunk, up to the end.
func (f *following) attach(ctx context.Context, x *computev1.GetExecResponse, after uint64, each func(*computev1.ExecEvent) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := f.opt.API.AttachExec(ctx, &computev1.AttachExecRequest{SandboxId: x.GetSandboxId(), ExecId: x.GetExecId(), AfterChunk: after})
	if err != nil {
		return err
	}
	return drain(stream, each)
}

func drain(stream grpc.ServerStreamingClient[computev1.ExecEvent], each func(*computev1.ExecEvent) error) error {
	for {
		e, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := each(e); err != nil {
			return err
		}
		if e.GetCompleted() != nil {
			return nil
		}
	}
}
