package load

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sandtrail/sandtrail/libs/fault"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

// Run is one exec that a client starts and follows, over as many streams as it takes.
type Run struct {
	Tenant, Key string
	Program     *journal.Program
	Request     *computev1.ExecCommandRequest
	// Cut gives, for each stream, after how long the client cuts it off itself; 0 is never. nil is never too.
	Cut func() time.Duration
	// Named is called once the exec's id is known; may be nil.
	Named func(exec string)
}

// End of an exec as its client sees it. Neither is set where it was refused.
type End struct {
	Exec string
	// Completed is nil unless the end was observed.
	Completed *computev1.ExecCompleted
	Lost      bool
	Bytes     uint64
}

// following is a Run under way.
type following struct {
	*Client
	run  Run
	end  End
	last uint64
	// known: an event has come, so the exec is recorded and can be attached to.
	known bool
	// barren counts the streams since the last that brought a chunk: each is cut later than the one before, because a client that hangs up
	// before any answer can come gets none from a host that is slow.
	barren int
}

// maxBarren bounds how often the time until a cut is doubled.
const maxBarren = 6

// Exec runs a command to its end.
func (c *Client) Exec(ctx context.Context, r Run) (End, error) {
	f := &following{Client: c, run: r}
	p := newPacer()
	for {
		before := f.last
		err := f.once(ctx)
		if err == nil || f.end.Lost {
			return f.end, nil
		}
		if f.last > before {
			p.progress()
			f.barren = -1
		}
		f.barren++
		// Between its acceptance and its first event an exec is on its way to its worker and not to be found.
		early := !f.known && notFound(err)
		if !temporary(err) && !early {
			return f.end, err
		}
		if err := p.wait(ctx, err); err != nil {
			return f.end, err
		}
	}
}

// once follows one stream to its end; an error where it ended before the exec.
func (f *following) once(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if f.run.Cut != nil {
		if d := f.run.Cut(); d > 0 {
			defer time.AfterFunc(d<<min(f.barren, maxBarren), cancel).Stop()
		}
	}
	call := journal.Call{Client: f.name, Tenant: f.run.Tenant, Sandbox: f.run.Request.GetSandboxId()}
	var open *journal.Open
	var stream grpc.ServerStreamingClient[computev1.ExecEvent]
	var err error
	if f.known {
		call.Op, call.Exec, call.After = journal.Attach, f.end.Exec, f.last
		open = f.journal.Begin(call)
		stream, err = f.api.AttachExec(ctx, &computev1.AttachExecRequest{SandboxId: call.Sandbox, ExecId: f.end.Exec, AfterChunk: f.last})
	} else {
		call.Op, call.Key, call.Program = journal.Exec, f.run.Key, f.run.Program
		open = f.journal.Begin(call)
		stream, err = f.api.ExecCommand(metadata.AppendToOutgoingContext(ctx, "idempotency-key", f.run.Key), f.run.Request)
	}
	if err == nil {
		err = f.read(stream, cancel, open)
	}
	open.Done(err)
	f.end.Lost = status.Code(err) == codes.DataLoss
	return err
}

func (f *following) read(stream grpc.ServerStreamingClient[computev1.ExecEvent], cancel func(), open *journal.Open) error {
	quiet := time.AfterFunc(silence, cancel)
	defer quiet.Stop()
	if h, err := stream.Header(); err == nil {
		open.Header(h)
		if id := open.Call().Exec; id != "" && f.end.Exec == "" {
			f.end.Exec = id
			if f.run.Named != nil {
				f.run.Named(id)
			}
		}
	}
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) && f.end.Completed == nil {
			return status.Error(codes.Unavailable, "the stream ended before the exec")
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			if f.end.Completed != nil {
				return nil
			}
			return err
		}
		quiet.Reset(silence)
		open.Event(e)
		f.take(e)
	}
}

func (f *following) take(e *computev1.ExecEvent) {
	if e.GetHeartbeat() != nil {
		return
	}
	f.known = true
	f.last = max(f.last, e.GetChunk())
	f.end.Bytes += uint64(len(e.GetStdout().GetData()) + len(e.GetStderr().GetData()))
	if end := e.GetCompleted(); end != nil {
		f.end.Completed, f.end.Exec = end, end.GetExecId()
	}
}

// Read attaches to an exec from its first chunk on, cuts each stream off after the time that cut gives, and attaches behind the last chunk
// again, at most times. It ends with the exec, or when it was refused.
func (c *Client) Read(ctx context.Context, tenant, sandbox, exec string, times int, cut func() time.Duration) error {
	f := &following{Client: c, known: true, end: End{Exec: exec}, run: Run{
		Tenant: tenant, Request: &computev1.ExecCommandRequest{SandboxId: sandbox}, Cut: cut,
	}}
	p := newPacer()
	for range times {
		err := f.once(ctx)
		if err == nil || f.end.Lost {
			return nil
		}
		if !temporary(err) && !notFound(err) {
			return err
		}
		if err := p.wait(ctx, err); err != nil {
			return err
		}
	}
	return nil
}

// notFound: the exec is not in the log.
func notFound(err error) bool {
	f := fault.FromStatus(err)
	return f != nil && f.Reason == fault.ReasonExecNotFound
}
