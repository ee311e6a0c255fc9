package runner

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/quota"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	tenants "github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/worker"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/terminal"
)

// Handle takes one ExecCommand. It answers on reply_to as soon as the command is accepted or refused, and returns nil (so that
// the command is acknowledged) once the toolbox has the program: until then the command, with its sealed environment, is
// delivered again after a crash.
func (r *Runner) Handle(ctx context.Context, m worker.Message) error {
	cmd := &commandsv1.ExecCommand{}
	if err := proto.Unmarshal(m.Data, cmd); err != nil {
		return worker.Poison(dlq.Undecodable("an ExecCommand", err))
	}
	agg := subject.Exec(cmd.GetTenantId(), cmd.GetSandboxId(), cmd.GetExecId())
	if agg.Validate() != nil || cmd.GetCommandId() == "" ||
		m.Subject != subject.ExecCommand(r.cfg.Worker, agg.Tenant, agg.Sandbox, agg.ID) {
		return worker.Poison(dlq.Misaddressed())
	}
	switch c := cmd.GetCommand().(type) {
	case *commandsv1.ExecCommand_Start:
		return r.handleStart(ctx, agg, cmd, m.Attempt)
	case *commandsv1.ExecCommand_Cancel:
		ctx, span := r.tracer.Start(ctx, "exec.cancel", trace.WithSpanKind(trace.SpanKindConsumer))
		defer span.End()
		seq, err := r.cancel(ctx, agg, cmd, c.Cancel.GetReason())
		return r.answer(ctx, cmd, seq, err)
	default:
		return worker.Poison(dlq.UnknownKind())
	}
}

func (r *Runner) handleStart(ctx context.Context, agg subject.Aggregate, cmd *commandsv1.ExecCommand, attempt int) error {
	quotas, err := r.quotas(ctx, agg.Tenant)
	if err == nil {
		err = r.check(agg.Tenant, quotas, cmd.GetStart())
	}
	if err != nil {
		return r.answer(ctx, cmd, 0, err)
	}
	r.deps.Relay.Begin(agg.Sandbox)
	began := time.Now()
	free, err := r.take(ctx, agg, quotas, attempt)
	if err != nil {
		return r.answer(ctx, cmd, 0, err)
	}
	x, fresh, err := r.open(agg, cmd.GetCommandId(), false)
	if err != nil {
		free()
		return r.answer(ctx, cmd, 0, err)
	}
	if fresh {
		x.free = free
	} else {
		free()
	}
	switch {
	case fresh:
		// The run outlives this delivery, its trace goes on.
		go x.supervise(context.WithoutCancel(ctx), cmd)
	case x.commandID != cmd.GetCommandId():
		return r.answer(ctx, cmd, 0, fault.Newf(fault.Conflict, fault.ReasonExecExists, "exec %s exists already", agg.ID))
	default:
		x.offer(cmd)
	}
	select {
	case <-x.accepted:
	case <-x.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-x.accepted:
	default:
		return errors.New("the run ended before its command was accepted")
	}
	if err := r.answer(ctx, cmd, x.seq, x.refused); err != nil || x.refused != nil {
		return err
	}
	return x.awaitBegun(ctx, began)
}

// awaitBegun returns nil once the command is of no more use. While the sandbox is not ready the command goes back to its
// queue rather than to hold a lane: it is the only place where the environment is kept.
func (x *run) awaitBegun(ctx context.Context, began time.Time) error {
	waits := x.waits
	select {
	case <-x.begun:
		waits = nil
	default:
	}
	select {
	case <-x.begun:
		x.r.metrics.start.Observe(time.Since(began).Seconds())
		return nil
	case <-waits:
		return worker.RetryAfter(x.r.cfg.RequeueAfter, errors.New("the sandbox is not ready yet"))
	case <-x.done:
		select {
		case <-x.begun:
			return nil
		default:
			return errors.New("the run ended before its program was started")
		}
	case <-ctx.Done():
		return ctx.Err()
	}
}

// check refuses what must never run and fills in the limits that were not asked for, so that the log has those that hold.
func (r *Runner) check(id string, quotas tenants.Quotas, c *commandsv1.StartExec) error {
	spec := c.GetSpec()
	if spec.GetCommand() == "" {
		return fault.New(fault.InvalidArgument, fault.ReasonValidation, "a command is needed").
			WithFields(map[string]string{"command": "must not be empty"})
	}
	for _, s := range append([]string{spec.GetCommand(), spec.GetWorkingDir()}, spec.GetArgs()...) {
		if strings.ContainsRune(s, 0) {
			return fault.New(fault.InvalidArgument, fault.ReasonValidation, "arguments cannot hold a zero byte")
		}
	}
	if t := spec.GetTerminal(); t != nil && !terminal.Valid(t) {
		return fault.New(fault.InvalidArgument, fault.ReasonValidation, "the size of the terminal is not valid").
			WithFields(map[string]string{"terminal": fmt.Sprintf("1 to %d columns and 1 to %d rows", terminal.MostColumns, terminal.MostRows)})
	}
	if limit := uint64(r.cfg.MaxTimeout.Milliseconds()); spec.GetTimeoutMs() > limit {
		return fault.Newf(fault.InvalidArgument, fault.ReasonValidation, "the timeout is over the maximum of %s", r.cfg.MaxTimeout).
			WithFields(map[string]string{"timeout": "at most " + r.cfg.MaxTimeout.String()})
	}
	if spec.GetTimeoutMs() == 0 {
		spec.TimeoutMs = uint64(r.cfg.DefaultTimeout.Milliseconds())
	}
	if spec.GetOutputLimitBytes() > r.cfg.OutputLimit {
		return fault.Newf(fault.InvalidArgument, fault.ReasonValidation, "the limit of output is over the maximum of %d bytes", r.cfg.OutputLimit).
			WithFields(map[string]string{"output_limit_bytes": "at most " + strconv.FormatUint(r.cfg.OutputLimit, 10)})
	}
	limit, bounded := quotas.Limit(tenants.Output)
	switch asked := spec.GetOutputLimitBytes(); {
	case bounded && asked > limit:
		return quota.Exceeded(id, tenants.Output, limit, 0, asked, 0)
	case bounded && asked == 0:
		spec.OutputLimitBytes = max(1, min(limit, r.cfg.OutputLimit))
	case asked == 0:
		spec.OutputLimitBytes = r.cfg.OutputLimit
	}
	return nil
}

// answer publishes the outcome of a command. It returns err where trying again later may help, so that the command stays.
func (r *Runner) answer(ctx context.Context, cmd *commandsv1.ExecCommand, seq uint64, err error) error {
	if err != nil && (ctx.Err() != nil || passing(err) || errors.Is(err, client.ErrUnavailable)) {
		return err
	}
	if cmd.GetReplyTo() == "" {
		return nil
	}
	out := &commandsv1.Outcome{CommandId: cmd.GetCommandId(), Sequence: seq}
	if err != nil {
		detail, code := fault.Detail(err)
		detail.CorrelationId = cmd.GetCorrelationId()
		out.Error, out.GrpcCode = detail, uint32(code)
	}
	data, merr := proto.Marshal(out)
	if merr != nil {
		return worker.Poison(wrap("encode outcome", merr))
	}
	if perr := r.deps.NC.Publish(cmd.GetReplyTo(), data); perr != nil {
		// The sender reads the log when no answer comes.
		r.log.WarnContext(ctx, "outcome not published", "exec", cmd.GetExecId(), "error", perr)
	}
	return nil
}

// meta is what the events of a command have in common.
func meta(cmd *commandsv1.ExecCommand) sandbox.CommandMeta {
	return sandbox.CommandMeta{
		ID: cmd.GetCommandId(), Actor: cmd.GetActor(), Correlation: cmd.GetCorrelationId(), Time: time.Now(), Tenant: cmd.GetTenantId(),
	}
}

func requestedAt(cmd *commandsv1.ExecCommand) time.Time {
	if t := cmd.GetTime(); t.IsValid() {
		return t.AsTime()
	}
	return time.Now()
}

// traced puts the trace of ctx on events.
func traced(ctx context.Context, events []envelope.Event) []envelope.Event {
	h := nats.Header{}
	telemetry.Inject(ctx, h)
	for i := range events {
		for k, v := range h {
			switch {
			case len(v) == 0:
			case strings.EqualFold(k, envelope.HeaderTraceparent):
				events[i].Traceparent = v[0]
			case strings.EqualFold(k, envelope.HeaderTracestate):
				events[i].Tracestate = v[0]
			}
		}
	}
	return events
}

// cancel records that the exec shall end and ends it: one that waits for its sandbox at once, a program by TERM and, after
// the grace, KILL to its whole tree.
func (r *Runner) cancel(ctx context.Context, agg subject.Aggregate, cmd *commandsv1.ExecCommand, reason string) (uint64, error) {
	h, err := eventlog.Execute(ctx, r.deps.Log, agg, func(h eventlog.History) ([]envelope.Event, error) {
		x, err := sandbox.FoldExec(h)
		if err != nil {
			return nil, err
		}
		bodies, err := sandbox.DecideExec(x, sandbox.RequestCancel{Reason: reason})
		if err != nil {
			return nil, err
		}
		return traced(ctx, sandbox.Events(meta(cmd), bodies...)), nil
	})
	if err != nil {
		return 0, err
	}
	x, err := sandbox.FoldExec(h)
	if err != nil || x.Over() {
		return x.LastSeq, err
	}
	if run := r.find(agg.ID); run != nil {
		run.cancelled.Store(true)
		run.wakeUp()
	}
	if x.State != sandbox.ExecRunning {
		return x.LastSeq, nil
	}
	return x.LastSeq, r.kill(ctx, agg, x.CancelRequested)
}

// kill has the toolbox end the tree. A program that is not there yet (its start is on the way) is tried again for a moment; its
// run looks before and behind its start whether it was cancelled.
func (r *Runner) kill(ctx context.Context, agg subject.Aggregate, reason string) error {
	if reason == "" || reason == "client_gone" {
		reason = sandbox.ReasonCancelled
	}
	for try := 0; ; try++ {
		err := r.toolboxSignal(ctx, agg, reason)
		var refused *client.Error
		switch {
		case err == nil:
			return nil
		case errors.As(err, &refused):
			if refused.Code != string(fault.NotFound) || try >= 20 {
				return nil
			}
		case r.find(agg.ID) == nil || try >= 20:
			return err
		}
		if err := pause.For(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

func (r *Runner) toolboxSignal(ctx context.Context, agg subject.Aggregate, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := r.deps.Toolbox(agg.Sandbox).Signal(ctx, &toolboxv1.Signal{
		ExecId: agg.ID, Signal: int32(syscall.SIGTERM), Tree: true,
		GraceMs: uint64(r.cfg.CancelGrace.Milliseconds()), Reason: reason,
	})
	return err
}
