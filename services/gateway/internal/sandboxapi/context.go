package sandboxapi

import (
	"context"
	"errors"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/transcript"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/interpreter"
)

const (
	// contextsMost is how many contexts run in a sandbox at once, the default one among them.
	contextsMost = 16
	// helloTime is how long a new context may take to answer, and one that runs to restart.
	helloTime = time.Minute
	// endTime is how long a call waits until a context that it ends has ended.
	endTime = 20 * time.Second
)

// A context is an exec. It has one of the sandbox's places, of which the first is the default context's, and its id is derived from the place
// and how many have had it before. So every gateway finds all contexts in the log, of which none is told, and of several who make one at once
// one wins.
func contextID(box string, place, turn int) string {
	return ids.Derive("context", box, strconv.Itoa(place), strconv.Itoa(turn))
}

// at is the last exec that had a place, and its turn; nil and -1 where nobody had it.
func (c *call) at(box string, place int) (*sandbox.Exec, int, error) {
	var last *sandbox.Exec
	had := func(turn int) (bool, error) {
		x, err := c.use.Receipt(c.ctx, c.p, box, contextID(box, place, turn))
		if fault.Is(err, fault.ReasonExecNotFound) {
			return false, nil
		}
		if err == nil {
			last = &x
		}
		return err == nil, err
	}
	// Turns follow each other without a gap: some steps find the last one of thousands.
	low, high := -1, 0
	for {
		ok, err := had(high)
		if err != nil {
			return nil, 0, err
		}
		if !ok {
			break
		}
		low, high = high, 2*high+1
	}
	for low+1 < high {
		middle := low + (high-low)/2
		ok, err := had(middle)
		switch {
		case err != nil:
			return nil, 0, err
		case ok:
			low = middle
		default:
			high = middle
		}
	}
	return last, low, nil
}

// defaultContext is the context of who names none. It is made by whoever comes first.
func (c *call) defaultContext(box string) (sandbox.Exec, error) {
	x, turn, err := c.at(box, 0)
	if err != nil {
		return sandbox.Exec{}, err
	}
	if x != nil && !x.Over() {
		return *x, nil
	}
	return c.begin(box, contextID(box, 0, turn+1), defaultMaker, "")
}

// begin starts a context, unless it runs already.
func (c *call) begin(box, id, maker, cwd string) (sandbox.Exec, error) {
	req := &computev1.ExecCommandRequest{
		SandboxId: box, Command: interpreter.Program, Args: interpreter.Arguments(maker), Stdin: interpreter.Source(), KeepStdin: true, Detach: true,
		WorkingDir: cwd, Timeout: durationpb.New(c.use.LongestExec()),
		// Behind the limit no answer would come any more.
		StopAtOutputLimit: true,
	}
	broken, err := c.Violations(req)
	if err == nil {
		err = invalid(broken)
	}
	if err == nil {
		err = rename(c.use.StartAs(c.ctx, c.p, id, req))
	}
	if err != nil {
		return sandbox.Exec{}, err
	}
	return c.use.Receipt(c.ctx, c.p, box, id)
}

// contextOf is a context by its id, running or ended.
func (c *call) contextOf(box, id string) (sandbox.Exec, error) {
	if _, err := c.use.Located(c.ctx, c.p, box); err != nil {
		return sandbox.Exec{}, err
	}
	none := fault.Newf(fault.NotFound, fault.ReasonExecNotFound, "there is no context %.64q", id)
	if !ids.Valid(id) {
		return sandbox.Exec{}, none
	}
	x, err := c.use.Receipt(c.ctx, c.p, box, id)
	if err != nil && !fault.Is(err, fault.ReasonExecNotFound) {
		return x, err
	}
	if _, is := interpreter.Maker(x); err != nil || !is {
		return x, none
	}
	return x, nil
}

// ask makes a request of a context. Call release once it is answered.
func (c *call) ask(ctx context.Context, x sandbox.Exec, r interpreter.Request) (interpreter.Answer, func(), error) {
	r.ID = ids.New()
	if x.Over() {
		return interpreter.Answer{}, func() {}, c.gone(x)
	}
	answer, release, err := c.asker.Ask(ctx, x.ID, c.use.Talk(c.p, x.Sandbox, x.ID), r, c.memory)
	switch {
	case errors.Is(err, interpreter.ErrEnded):
		if x, err = c.use.Receipt(c.ctx, c.p, x.Sandbox, x.ID); err == nil {
			err = c.gone(x)
		}
	case err != nil && ctx.Err() != nil && c.ctx.Err() == nil:
		err = fault.New(fault.DeadlineExceeded, fault.ReasonTimeout, "the context did not answer in time; restart it")
	case err == nil && answer.Busy:
		err = fault.New(fault.ResourceExhausted, fault.ReasonTooManyCalls, "too many cells wait in this context").WithRetry(time.Second)
	}
	if err != nil {
		release()
		return answer, func() {}, err
	}
	return answer, release, nil
}

// gone says why a context that has ended takes no more cells: the sandbox does not run, has no Python, or something ended it.
func (c *call) gone(x sandbox.Exec) error {
	if err := c.use.Awake(c.ctx, c.p, x.Sandbox); err != nil {
		return err
	}
	if x.State != sandbox.ExecCompleted {
		return outcome(x)
	}
	reason, code := x.Completed.GetReason(), x.Completed.GetExitCode()
	if reason == sandbox.ReasonStartFailed || code == 127 || code == 126 {
		return fault.Newf(fault.FailedPrecondition, fault.ReasonStartFailed, "the image has no python3 from version 3.8 on, which contexts need: %s",
			orElse(clean(x.Completed.GetMessage()), "it cannot be started"))
	}
	return fault.Newf(fault.FailedPrecondition, fault.ReasonIllegalState, "the context has ended (%s, exit code %d) and its variables are gone; make another",
		reason, code)
}

// ended waits until a context has ended, for endTime at most, and returns what is recorded of it then.
func (c *call) ended(x sandbox.Exec) (sandbox.Exec, error) {
	ctx, cancel := context.WithTimeout(c.ctx, endTime)
	defer cancel()
	exec := c.use.Talk(c.p, x.Sandbox, x.ID)
	after, err := exec.Last(ctx)
	if err == nil {
		err = exec.Follow(ctx, after, func(*transcript.Chunk) error { return nil })
	}
	if err != nil && (ctx.Err() == nil || c.ctx.Err() != nil) && !fault.Is(err, fault.ReasonCursorExpired) {
		return x, err
	}
	return c.use.Receipt(c.ctx, c.p, x.Sandbox, x.ID)
}
