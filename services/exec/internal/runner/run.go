package runner

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/exec/internal/relay"
)

// run is one exec under supervision, from its command (or its discovery after a restart) to its recorded end.
type run struct {
	r         *Runner
	agg       subject.Aggregate
	commandID string
	out       relay.Exec
	// free gives its tenant's quota back.
	free func()

	// accepted is closed with seq and refused set; waits when the sandbox must become ready first; begun when the toolbox has
	// the program or the exec is over; done when nobody supervises it here any more.
	accepted, waits, begun, done chan struct{}
	seq                          uint64
	refused                      error
	once                         map[chan struct{}]*sync.Once
	// wake makes a waiting run look again. offers holds its command, delivered again.
	wake   chan struct{}
	offers chan *commandsv1.ExecCommand
	// cancelled is set behind a recorded request for the exec's end: its program may be on the way to the toolbox, where none is to be
	// ended yet.
	cancelled atomic.Bool

	// state and tail are as the log had them when last read or written here.
	state       sandbox.Exec
	tail        eventlog.Tail
	correlation string
}

func newRun(r *Runner, agg subject.Aggregate, commandID string) *run {
	x := &run{
		r: r, agg: agg, commandID: commandID, free: func() {},
		out:      relay.Exec{ID: agg.ID, Subject: subject.Output(agg.Tenant, agg.Sandbox, agg.ID), Sandbox: agg.Sandbox},
		accepted: make(chan struct{}), waits: make(chan struct{}), begun: make(chan struct{}), done: make(chan struct{}),
		wake: make(chan struct{}, 1), offers: make(chan *commandsv1.ExecCommand, 1),
		state: sandbox.Exec{ID: agg.ID, Sandbox: agg.Sandbox, Tenant: agg.Tenant},
	}
	x.once = map[chan struct{}]*sync.Once{x.accepted: {}, x.waits: {}, x.begun: {}}
	return x
}

func (x *run) mark(c chan struct{}) { x.once[c].Do(func() { close(c) }) }

// accept tells the handler what to answer.
func (x *run) accept(err error) {
	x.once[x.accepted].Do(func() {
		x.seq, x.refused = x.tail.Seq, err
		close(x.accepted)
	})
}

func (x *run) offer(cmd *commandsv1.ExecCommand) {
	select {
	case x.offers <- cmd:
	default:
	}
}

func (x *run) wakeUp() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// supervise runs the exec to its recorded end, or until the runner stops. ctx carries the trace only.
func (x *run) supervise(ctx context.Context, cmd *commandsv1.ExecCommand) {
	defer x.r.release(x)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(x.r.life, cancel)()
	ctx, span := x.r.tracer.Start(ctx, "exec.run", trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
		attribute.String("sandtrail.exec", x.agg.ID), attribute.String("sandtrail.sandbox", x.agg.Sandbox),
	))
	defer func() {
		span.SetAttributes(attribute.String("sandtrail.state", x.state.State))
		span.End()
	}()
	if err := x.drive(ctx, cmd); err != nil && ctx.Err() == nil {
		select {
		case <-x.accepted:
			x.r.log.ErrorContext(ctx, "exec is left as it is", "exec", x.agg.ID, "sandbox", x.agg.Sandbox, "error", err)
		default:
			x.accept(err)
		}
	}
}

func (x *run) drive(ctx context.Context, cmd *commandsv1.ExecCommand) error {
	fresh := false
	if cmd != nil {
		x.correlation = cmd.GetCorrelationId()
		var err error
		if fresh, err = x.fence(ctx, cmd); err != nil {
			return err
		}
	} else if err := x.reload(ctx); err != nil {
		return err
	}
	if x.state.Over() || x.state.Worker != x.r.cfg.Worker {
		// Nothing is left to do, or another worker does it.
		x.accept(nil)
		x.mark(x.begun)
		return nil
	}
	x.accept(nil)
	sctx, span := x.r.tracer.Start(ctx, "exec.start")
	err := x.start(sctx, cmd, fresh)
	span.End()
	if err != nil || x.state.Over() {
		return err
	}
	return x.follow(ctx, fresh)
}

// reload reads the exec from the log.
func (x *run) reload(ctx context.Context) error {
	return x.r.retry(ctx, "load exec", x, func() error {
		h, err := eventlog.Known(ctx, x.r.deps.Log, x.agg)
		if err != nil {
			return err
		}
		state, err := sandbox.FoldExec(h)
		if err != nil {
			return wrap("fold exec", err)
		}
		x.state, x.tail = state, h.Tail()
		if len(h.Events) > 0 && x.correlation == "" {
			x.correlation = h.Events[0].Correlation
		}
		return nil
	})
}

// record appends what a command decides on the present state; index is that of its first event among those of the command.
// Where somebody was faster it decides again on what they made. False: there was nothing to append, or an earlier delivery had appended it.
func (x *run) record(ctx context.Context, m sandbox.CommandMeta, index int, c sandbox.ExecCommand) (bool, error) {
	appended := false
	err := x.r.retry(ctx, "append", x, func() error {
		bodies, err := sandbox.DecideExec(x.state, c)
		if err != nil || len(bodies) == 0 {
			return err
		}
		events := traced(ctx, sandbox.Events(m, bodies...))
		for i := range events {
			events[i].ID = ids.Event(m.ID, index+i)
		}
		recorded, err := x.r.deps.Log.Append(ctx, x.agg, x.tail, events...)
		if errors.Is(err, eventlog.ErrConflict) {
			if lerr := x.reload(ctx); lerr != nil {
				return lerr
			}
			return err
		}
		if err != nil {
			return err
		}
		if recorded[0].Found {
			// An earlier delivery has recorded it, whose process may be gone: what came behind it counts as well.
			return x.reload(ctx)
		}
		appended = true
		return x.advance(recorded)
	})
	return appended, err
}

func (x *run) advance(recorded []envelope.Recorded) error {
	for _, e := range recorded {
		next, err := x.state.Evolve(e)
		if err != nil {
			return wrap("evolve exec", err)
		}
		x.state = next
	}
	x.tail = tailOf(recorded)
	return nil
}

// Indexes of a start command's events. Each kind has its own, so that a retry never takes one for the other.
const (
	indexRequested = 0
	indexStarted   = 1
)

// fence takes the exec for this worker, waiting for its sandbox where it is not ready. True: it was taken just now, so that
// nothing of it can be in OUT.
func (x *run) fence(ctx context.Context, cmd *commandsv1.ExecCommand) (bool, error) {
	m := meta(cmd)
	box := subject.Sandbox(x.agg.Tenant, x.agg.Sandbox)
	ready, err := x.r.readyNow(ctx, box)
	if err != nil {
		// An exec that has begun already is not refused for what its sandbox has become.
		if lerr := x.reload(ctx); lerr != nil || !x.state.Exists() {
			return false, err
		}
		if err := x.ours(); err != nil {
			return false, err
		}
		if x.state.State != sandbox.ExecRequested {
			return false, nil
		}
	}
	at := requestedAt(cmd)
	if !ready {
		_, err := x.record(ctx, m, indexRequested, sandbox.RequestExec{
			CommandID: cmd.GetCommandId(), SandboxID: x.agg.Sandbox, ExecID: x.agg.ID, Spec: cmd.GetStart().GetSpec(), RequestedAt: at,
		})
		if err != nil {
			return false, err
		}
		if x.state.State == sandbox.ExecRequested {
			x.accept(nil)
			x.mark(x.waits)
			if err := x.awaitReady(ctx, box); err != nil || x.state.Over() {
				return false, err
			}
		}
	}
	m.Time = time.Now()
	return x.record(ctx, m, indexStarted, sandbox.StartExec{
		CommandID: cmd.GetCommandId(), SandboxID: x.agg.Sandbox, ExecID: x.agg.ID, Spec: cmd.GetStart().GetSpec(),
		Worker: x.r.cfg.Worker, RequestedAt: at,
	})
}

// ours refuses a command for an exec that another command made.
func (x *run) ours() error {
	if x.state.CommandID != "" && x.state.CommandID != x.commandID {
		return fault.Newf(fault.Conflict, fault.ReasonExecExists, "exec %s exists already", x.agg.ID)
	}
	return nil
}

// awaitReady waits until the sandbox is ready. An exec whose sandbox ends first, whose time to start runs out, or that is
// cancelled meanwhile never ran, and its end says so: it is completed and not lost.
func (x *run) awaitReady(ctx context.Context, box subject.Aggregate) error {
	sub, err := x.r.deps.NC.Subscribe(subject.Live(box.Subject()), func(*nats.Msg) { x.wakeUp() })
	if err != nil {
		return wrap("watch sandbox", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := flush(ctx, x.r.deps.NC); err != nil {
		x.r.log.Warn("watching a sandbox by reading it only", "sandbox", x.agg.Sandbox, "error", err)
	}
	deadline := time.NewTimer(time.Until(x.state.RequestedAt.Add(x.r.cfg.StartDeadline)))
	defer deadline.Stop()
	// A lost live event costs at most one tick.
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		done, err := x.ready(ctx, box)
		if done || err != nil {
			return err
		}
		select {
		case <-x.wake:
		case <-tick.C:
		case <-deadline.C:
			return x.never(ctx, sandbox.ReasonTimedOut, "the sandbox did not become ready in time")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ready looks at sandbox and exec once: true when the waiting is over.
func (x *run) ready(ctx context.Context, box subject.Aggregate) (bool, error) {
	if err := x.reload(ctx); err != nil {
		return false, err
	}
	if x.state.Over() || x.state.State == sandbox.ExecRunning {
		return true, nil
	}
	if x.state.CancelRequested != "" {
		return true, x.never(ctx, sandbox.ReasonCancelled, "cancelled before it was started")
	}
	s, err := x.r.ready.load(ctx, box)
	switch {
	case err != nil && !passing(err):
		return false, err
	case err != nil:
		return false, nil
	case s.State == sandbox.Failed:
		return true, x.never(ctx, sandbox.ReasonStartFailed, "the sandbox failed: "+s.Message)
	case s.Ending():
		return true, x.never(ctx, sandbox.ReasonSandboxDestroyed, "the sandbox was destroyed before the command was started")
	case s.State == sandbox.Stopping, s.State == sandbox.Stopped:
		return true, x.never(ctx, sandbox.ReasonSandboxStopped, "the sandbox was stopped before the command was started")
	case s.State != sandbox.Ready:
		return false, nil
	}
	return x.r.hello(ctx, box) == nil, nil
}

// cannotRun is what a shell gives for a command that it cannot run, notFound for one that is not there.
const (
	cannotRun = 126
	notFound  = 127
)

// never records the end of an exec whose program was not started.
func (x *run) never(ctx context.Context, reason, message string) error {
	return x.neverWith(ctx, cannotRun, reason, message)
}

func (x *run) neverWith(ctx context.Context, code int32, reason, message string) error {
	x.mark(x.begun)
	return x.finish(ctx, sandbox.CompleteExec{Completed: &eventsv1.ExecCompleted{
		ExitCode: code, Reason: reason, Message: message, Stdout: &eventsv1.Output{}, Stderr: &eventsv1.Output{},
	}})
}

// flush makes sure that the server has the subscription: what happens from here on is seen.
func flush(ctx context.Context, nc *nats.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return nc.FlushWithContext(ctx)
}
