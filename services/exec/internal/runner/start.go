package runner

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/client"
)

// callTimeout bounds one call of a toolbox on the same host.
const callTimeout = 10 * time.Second

func (r *Runner) hello(ctx context.Context, box subject.Aggregate) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	h, err := r.deps.Toolbox(box.ID).Hello(ctx, &toolboxv1.Hello{})
	if err == nil && !h.GetAlive() {
		return errNotAlive
	}
	if err == nil {
		r.ready.met(box, h.GetInstance())
	}
	return err
}

var errNotAlive = errors.New("the sandbox has ended")

// readyNow reports whether an exec can be started at once. An error refuses the command: the sandbox is unknown, over, or on
// another worker.
func (r *Runner) readyNow(ctx context.Context, box subject.Aggregate) (bool, error) {
	if r.ready.worker(box) == r.cfg.Worker {
		if r.deps.Alive(box.ID) || r.hello(ctx, box) == nil {
			return true, nil
		}
		r.ready.forget(box)
	}
	s, err := r.ready.load(ctx, box)
	switch {
	case err != nil:
		return false, err
	case !s.Exists():
		return false, fault.Newf(fault.NotFound, fault.ReasonSandboxNotFound, "there is no sandbox %s", box.ID)
	case s.State == sandbox.Failed:
		return false, fault.Newf(fault.FailedPrecondition, fault.ReasonSandboxFailed, "sandbox %s has failed: %s", box.ID, s.Message)
	case s.Ending():
		return false, fault.Newf(fault.FailedPrecondition, fault.ReasonSandboxDestroyed, "sandbox %s is destroyed", box.ID)
	case s.State == sandbox.Stopping, s.State == sandbox.Stopped:
		return false, fault.Newf(fault.FailedPrecondition, fault.ReasonSandboxStopped, "sandbox %s is %s; start it first", box.ID, s.State)
	case s.Worker != "" && s.Worker != r.cfg.Worker:
		return false, fault.Newf(fault.FailedPrecondition, fault.ReasonWorkerUnavailable,
			"sandbox %s is on another worker by now; try again", box.ID).WithRetry(time.Second)
	case s.State != sandbox.Ready:
		return false, nil
	}
	err = r.hello(ctx, box)
	return err == nil, ctx.Err()
}

// start sees to it that the toolbox has the program. The toolbox starts an exec id at most once, so asking again is safe
// whatever was before. It may record an end: of a program that cannot be started, or whose sandbox is gone.
func (x *run) start(ctx context.Context, cmd *commandsv1.ExecCommand, fresh bool) error {
	down := x.outage()
	for busy := 0; ; {
		err := x.startOnce(ctx, cmd, fresh)
		var refused *client.Error
		switch {
		case err == nil && x.cancelled.Load():
			x.mark(x.begun)
			if err := x.reload(ctx); err != nil || x.state.Over() {
				return err
			}
			return x.r.kill(ctx, x.agg, x.state.CancelRequested)
		case err == nil:
			x.mark(x.begun)
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errNoCommand):
			if cmd, err = x.awaitCommand(ctx); err != nil || cmd == nil {
				return err
			}
		case errors.Is(err, errEarlierRun):
			return x.lose(ctx, fault.ReasonSandboxStopped, stoppedUnseen)
		case errors.Is(err, errCancelled):
			return x.never(ctx, sandbox.ReasonCancelled, "cancelled before it was started")
		case errors.As(err, &refused) && undecided(refused) && busy < busyMost:
			// Whether it was started is open: ask what the toolbox knows, then again.
			busy++
			fresh = false
			if err := pause.For(ctx, 100*time.Millisecond); err != nil {
				return err
			}
		case errors.As(err, &refused):
			return x.declined(ctx, refused)
		case errors.As(err, new(*fault.Error)):
			return x.never(ctx, sandbox.ReasonStartFailed, fault.From(err).Message)
		default:
			// Whatever answers next may be another run of the sandbox.
			fresh = false
			if over, err := down.check(ctx, err); over || err != nil {
				return err
			}
		}
	}
}

// busyMost is how often a toolbox is asked that can neither start a program nor say why.
const busyMost = 50

// undecided: the toolbox was busy or failed itself, which says nothing about the program.
func undecided(e *client.Error) bool {
	switch fault.Code(e.Code) {
	case fault.Unavailable, fault.DeadlineExceeded, fault.Internal:
		return true
	default:
		return e.Reason == string(fault.ReasonQuota)
	}
}

// declined records that the toolbox did not start the program.
func (x *run) declined(ctx context.Context, e *client.Error) error {
	switch fault.Reason(e.Reason) {
	case fault.ReasonCommandNotFound:
		return x.neverWith(ctx, notFound, sandbox.ReasonStartFailed, e.Message)
	case fault.ReasonSandboxDestroyed:
		return x.never(ctx, sandbox.ReasonSandboxDestroyed, e.Message)
	case fault.ReasonSandboxStopped:
		return x.never(ctx, sandbox.ReasonSandboxStopped, e.Message)
	default:
		if undecided(e) {
			// Should it run after all, nobody would ever hear of it.
			_ = x.r.toolboxSignal(ctx, x.agg, sandbox.ReasonCancelled)
		}
		return x.never(ctx, sandbox.ReasonStartFailed, e.Message)
	}
}

var (
	// errNoCommand: the program is not started and what it needs is only in its command.
	errNoCommand = errors.New("the command is needed to start the program")
	errCancelled = errors.New("cancelled before it was started")
	// errEarlierRun: the sandbox was stopped and started again behind the exec's start. What runs in it now never had the program.
	errEarlierRun = errors.New("the sandbox was stopped meanwhile")
)

const stoppedUnseen = "the sandbox was stopped and the end of the command was not seen"

// earlierRun reports whether an exec was started in a run of its sandbox that is over, by all that was recorded before the call: a toolbox of the
// next run answers only behind the end of the one before.
func (x *run) earlierRun(ctx context.Context) (bool, error) {
	s, err := x.r.ready.current(ctx, x.box())
	over := s.ReadySeq > x.state.StartedSeq || s.State == sandbox.Stopped || s.Restarting()
	return err == nil && x.state.StartedSeq > 0 && over, err
}

func (x *run) box() subject.Aggregate { return subject.Sandbox(x.agg.Tenant, x.agg.Sandbox) }

func (x *run) startOnce(ctx context.Context, cmd *commandsv1.ExecCommand, fresh bool) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	box := x.r.deps.Toolbox(x.agg.Sandbox)
	// Only the toolbox that the decision to start is about may do it: the sandbox may get another one meanwhile, also between two attempts of
	// one call.
	instance := x.r.ready.instance(x.box())
	if !fresh || instance == "" {
		list, err := box.List(ctx, &toolboxv1.List{})
		if err != nil {
			return err
		}
		instance = list.GetInstance()
		x.r.ready.met(x.box(), instance)
		for _, e := range list.GetExecs() {
			if e.GetExecId() != x.agg.ID {
				continue
			}
			if x.state.CancelRequested != "" && e.GetEnd() == nil {
				return x.r.kill(ctx, x.agg, x.state.CancelRequested)
			}
			return nil
		}
		if over, err := x.earlierRun(ctx); over || err != nil {
			return orElse(err, errEarlierRun)
		}
	}
	// Also of one that was taken just now: the request may have come in between.
	if x.state.CancelRequested != "" || x.cancelled.Load() {
		return errCancelled
	}
	req, err := x.request(cmd)
	if err != nil {
		return err
	}
	req.Instance = instance
	x.wayOut(req)
	_, err = box.Start(ctx, req)
	return err
}

// wayOut tells a program where its sandbox's way out begins, unless it was told something else.
func (x *run) wayOut(req *toolboxv1.Start) {
	opened := x.r.deps.Ways != nil && x.r.deps.Ways(x.agg.Sandbox)
	for name, value := range x.r.ready.environment(x.box(), opened) {
		if req.Env == nil {
			req.Env = map[string]string{}
		}
		if _, told := req.Env[name]; !told {
			req.Env[name] = value
		}
	}
}

func orElse(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

// request is what the toolbox is asked to start: the recorded spec, with what only the command holds.
func (x *run) request(cmd *commandsv1.ExecCommand) (*toolboxv1.Start, error) {
	spec := x.state.Spec
	req := &toolboxv1.Start{
		ExecId: x.agg.ID, Argv: append([]string{spec.GetCommand()}, spec.GetArgs()...),
		WorkingDir: spec.GetWorkingDir(), TimeoutMs: spec.GetTimeoutMs(), KeepStdin: spec.GetKeepStdin(), Terminal: x.state.TerminalSize(),
	}
	if req.TimeoutMs == 0 {
		req.TimeoutMs = uint64(x.r.cfg.DefaultTimeout.Milliseconds())
	}
	if cmd == nil {
		if len(spec.GetEnvKeys()) > 0 || spec.GetStdinBytes() > 0 {
			return nil, errNoCommand
		}
		return req, nil
	}
	unsealed := fault.New(fault.InvalidArgument, fault.ReasonStartFailed, "the environment of the command cannot be opened on this worker")
	ad := []byte(x.agg.ID)
	if sealed := cmd.GetStart().GetSealedEnv(); len(sealed) > 0 {
		plain, err := x.r.deps.Key.Open(sealed, ad)
		if err != nil {
			return nil, unsealed.Because(err)
		}
		env := &commandsv1.Env{}
		if err := proto.Unmarshal(plain, env); err != nil {
			// The cause could quote what it failed on.
			return nil, unsealed
		}
		req.Env = env.GetVars()
	}
	if sealed := cmd.GetStart().GetSealedStdin(); len(sealed) > 0 {
		plain, err := x.r.deps.Key.Open(sealed, ad)
		if err != nil {
			return nil, unsealed.Because(err)
		}
		req.Stdin = plain
	}
	return req, nil
}

// awaitCommand waits for the command to be delivered again, which it is while it is not acknowledged. Without it the program
// can never be started: the fence is taken, its environment is gone, and the exec is lost.
func (x *run) awaitCommand(ctx context.Context) (*commandsv1.ExecCommand, error) {
	t := time.NewTimer(x.r.cfg.CommandWait)
	defer t.Stop()
	select {
	case cmd := <-x.offers:
		return cmd, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-t.C:
		x.mark(x.begun)
		return nil, x.finish(ctx, sandbox.LoseExec{Lost: &eventsv1.ExecLost{
			Reason: string(fault.ReasonExecLost), Message: "the service stopped before the program was started, and its command is gone",
		}})
	}
}

// outage judges a toolbox that does not answer.
type outage struct {
	x     *run
	since time.Time
	wait  time.Duration
}

func (x *run) outage() *outage { return &outage{x: x} }

// check pauses, or records the loss once the sandbox is known to be over or the toolbox was silent for its grace: then it
// returns true.
func (o *outage) check(ctx context.Context, cause error) (bool, error) {
	if o.since.IsZero() {
		o.since, o.wait = time.Now(), 20*time.Millisecond
	}
	x := o.x
	box := x.box()
	s, err := x.r.ready.load(ctx, box)
	if err == nil && s.State == sandbox.Destroyed {
		return true, x.lose(ctx, fault.ReasonSandboxDestroyed, "the sandbox was destroyed and the end of the command was not seen")
	}
	if err == nil && (s.State == sandbox.Failed || !s.Exists()) {
		return true, x.lose(ctx, fault.ReasonSandboxLost, "the sandbox ended and the end of the command was not seen")
	}
	if err == nil && (s.State == sandbox.Stopped || s.ReadySeq > x.state.StartedSeq && x.state.StartedSeq > 0) {
		return true, x.lose(ctx, fault.ReasonSandboxStopped, stoppedUnseen)
	}
	switch err := x.r.hello(ctx, box); {
	case err == nil:
		// It answers again; only silence counts.
		o.since = time.Now()
	case s.State == sandbox.Ready && errors.Is(err, client.ErrElsewhere):
		// The log knows no later place of it, and an address is given away only when what had it is gone.
		x.r.log.Warn("the sandbox is gone: its address is another one's", "sandbox", x.agg.Sandbox, "exec", x.agg.ID)
		return true, x.lose(ctx, fault.ReasonSandboxLost, "the sandbox is gone and the end of the command was not seen: its address belongs to another one")
	}
	if time.Since(o.since) > x.r.cfg.ToolboxGrace {
		x.r.log.Warn("toolbox does not answer", "sandbox", x.agg.Sandbox, "exec", x.agg.ID, "error", cause)
		return true, x.lose(ctx, fault.ReasonSandboxLost, "the sandbox does not answer any more and the end of the command was not seen")
	}
	if err := pause.For(ctx, o.wait); err != nil {
		return false, err
	}
	o.wait = min(2*o.wait, time.Second)
	return false, nil
}
