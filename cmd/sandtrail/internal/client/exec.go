package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"

	"github.com/sandtrail/sandtrail/libs/fault"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// errMissing: a chunk was left out, which only a broken way can do; the stream is taken up again in front of it.
var errMissing = errors.New("a chunk of output is missing")

// UnknownOutcomeError: the exec was accepted and may run or have run; how it ended could not be learnt in time.
type UnknownOutcomeError struct {
	Exec string
	Err  error
}

func (e *UnknownOutcomeError) Error() string {
	return fmt.Sprintf("the end of exec %s could not be learnt: %v", e.Exec, e.Err)
}

func (e *UnknownOutcomeError) Unwrap() error { return e.Err }

// Follower is told of an exec. An error of either ends the following and is returned as it is.
type Follower struct {
	// Accepted is called once, with the exec's id, when the server has recorded the exec.
	Accepted func(id string) error
	// Event is called for each chunk and gap in order and once, for heartbeats, and for completed at last.
	Event func(*computev1.ExecEvent) error
}

// Exec runs a command and follows it to its end. key must be an idempotency key that only this command has: the call is repeated
// with it until the server accepted it, and attached to behind the last chunk from then on. The command starts once.
func (c *Client) Exec(ctx context.Context, req *computev1.ExecCommandRequest, key string, f Follower) (*computev1.ExecCompleted, error) {
	r := &run{client: c, sandbox: req.GetSandboxId(), Follower: f}
	r.start = func(ctx context.Context) (eventStream, error) { return c.ExecCommand(WithKey(ctx, key), req) }
	return r.follow(ctx)
}

// Attach follows an exec from its first chunk, running or ended. sandbox may be empty.
func (c *Client) Attach(ctx context.Context, sandbox, exec string, f Follower) (*computev1.ExecCompleted, error) {
	r := &run{client: c, sandbox: sandbox, id: exec, Follower: f}
	return r.follow(ctx)
}

type eventStream = grpc.ServerStreamingClient[computev1.ExecEvent]

// run is one exec over as many streams as it takes.
type run struct {
	Follower
	client  *Client
	sandbox string
	start   func(context.Context) (eventStream, error)
	// id is known once the server accepted the exec; last is the last chunk that was given on.
	id   string
	last uint64
	// alive is when the last event came in that was not there before.
	alive time.Time
}

// told wraps an error of the follower, so that it is not taken for one of the stream.
type told struct{ error }

func (r *run) follow(ctx context.Context) (*computev1.ExecCompleted, error) {
	p := r.client.patience(r.client.options.Patience)
	for {
		accepted := r.id != ""
		r.alive = time.Time{}
		end, err := r.once(ctx)
		var t told
		switch {
		case err == nil:
			return end, nil
		case errors.As(err, &t):
			return nil, t.error
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
		if !accepted && r.id != "" {
			p = r.client.patience(r.client.options.Reconnect)
		}
		if r.alive.After(p.since) {
			p.progress()
		}
		// Between its acceptance and its first event an exec is on its way to its worker and nowhere to be found.
		early := r.start != nil && r.id != "" && r.last == 0 && Reason(err) == fault.ReasonExecNotFound
		if !cut(err) && !early {
			return nil, err
		}
		if p.wait(ctx, err) {
			continue
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if r.start != nil && r.id != "" {
			return nil, &UnknownOutcomeError{Exec: r.id, Err: err}
		}
		return nil, err
	}
}

// once follows one stream.
func (r *run) once(ctx context.Context) (*computev1.ExecCompleted, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silent := time.AfterFunc(r.client.options.Silence, cancel)
	defer silent.Stop()
	stream, err := r.open(ctx)
	if err != nil {
		return nil, err
	}
	// Without a header the stream has failed, and Recv says how.
	if md, err := stream.Header(); err == nil && len(md.Get(headerExec)) > 0 {
		if err := r.accept(md.Get(headerExec)[0]); err != nil {
			return nil, err
		}
	}
	for {
		e, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		silent.Reset(r.client.options.Silence)
		if end := e.GetCompleted(); end != nil {
			if err := r.accept(end.GetExecId()); err != nil {
				return nil, err
			}
		}
		if err := r.take(e); err != nil {
			return nil, err
		}
		if end := e.GetCompleted(); end != nil {
			return end, nil
		}
	}
}

func (r *run) open(ctx context.Context) (eventStream, error) {
	if r.id == "" {
		return r.start(ctx)
	}
	return r.client.AttachExec(ctx, &computev1.AttachExecRequest{SandboxId: r.sandbox, ExecId: r.id, AfterChunk: r.last})
}

func (r *run) accept(id string) error {
	if r.id != "" || id == "" {
		return nil
	}
	r.id = id
	if r.Accepted != nil {
		if err := r.Accepted(id); err != nil {
			return told{err}
		}
	}
	return nil
}

// take gives an event on. A chunk that was given on already is left out; one that leaves others out counts as a cut.
func (r *run) take(e *computev1.ExecEvent) error {
	if n := e.GetChunk(); n > 0 {
		if n <= r.last {
			return nil
		}
		if n > r.last+1 {
			return errMissing
		}
		r.last = n
	}
	r.alive = time.Now()
	if err := r.Event(e); err != nil {
		return told{err}
	}
	return nil
}

// Watch gives each event behind req.AfterSequence, in order and once, and goes on behind the last one when the stream is cut.
// It ends at the log's present end where req.NoFollow is set. Heartbeats are kept back. req is changed.
func (c *Client) Watch(ctx context.Context, req *computev1.WatchEventsRequest, each func(*computev1.WatchEventsResponse) error) error {
	p := c.patience(c.options.Patience)
	for {
		alive, err := c.watch(ctx, req, each)
		var t told
		switch {
		case errors.As(err, &t):
			return t.error
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, io.EOF) && req.GetNoFollow():
			return nil
		}
		if alive {
			p = c.patience(c.options.Reconnect)
		}
		if !cut(err) || !p.wait(ctx, err) {
			return err
		}
	}
}

// watch follows one stream; alive says that something came in.
func (c *Client) watch(ctx context.Context, req *computev1.WatchEventsRequest, each func(*computev1.WatchEventsResponse) error) (alive bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silent := time.AfterFunc(c.options.Silence, cancel)
	defer silent.Stop()
	stream, err := c.WatchEvents(ctx, req)
	if err != nil {
		return false, err
	}
	for {
		e, err := stream.Recv()
		if err != nil {
			return alive, err
		}
		alive = true
		silent.Reset(c.options.Silence)
		fresh := e.GetSequence() > req.GetAfterSequence()
		req.AfterSequence = max(req.GetAfterSequence(), e.GetSequence())
		if e.GetHeartbeat() || !fresh {
			continue
		}
		if err := each(e); err != nil {
			return alive, told{err}
		}
	}
}
