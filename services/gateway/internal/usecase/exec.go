package usecase

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/calls"
	"github.com/sandtrail/sandtrail/services/gateway/internal/output"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// Watcher is who follows an exec.
type Watcher interface {
	// Named is called once with the exec's id before anything else; the exec need not exist yet.
	Named(execID string) error
	// Output is called for each chunk in order, once the exec is accepted, and for heartbeats.
	Output(output.Item) error
}

// Exec runs a command and tells w of its output until its end, which it returns: ExecCompleted or ExecLost. When ctx ends
// first, the command goes on for the grace time and is cancelled unless it is detached or somebody attached.
func (u *UseCases) Exec(ctx context.Context, p principal.Principal, key string, req *computev1.ExecCommandRequest, w Watcher) (envelope.Recorded, error) {
	if err := p.Need(scopes.Execute); err != nil {
		return envelope.Recorded{}, err
	}
	s, err := u.locateForExec(ctx, p, req.GetSandboxId())
	if err != nil {
		return envelope.Recorded{}, err
	}
	spec, err := u.execSpec(s, req)
	if err != nil {
		return envelope.Recorded{}, err
	}
	c, err := u.claim(ctx, s.Tenant, "ExecCommand", key, p.Actor, req)
	if err != nil {
		return envelope.Recorded{}, err
	}
	spec.IdempotencyKeySha256, spec.RequestSha256 = c.digests()
	agg := subject.Exec(s.Tenant, s.ID, c.id())
	calls.About(ctx, agg)
	known := false
	if c.repeated {
		h, err := u.history(ctx, agg)
		if err != nil {
			return envelope.Recorded{}, err
		}
		known = len(h.Events) > 0
	}
	if err := errors.Join(over(s), resting(s)); err != nil && !known {
		return envelope.Recorded{}, err
	}
	f, err := output.Open(u.js, u.log, u.memory, agg, 0, u.timing())
	if err != nil {
		return envelope.Recorded{}, err
	}
	defer f.Close()
	if err := w.Named(agg.ID); err != nil {
		return envelope.Recorded{}, err
	}
	accepted := settled(nil)
	if !known {
		if accepted, err = u.start(ctx, p, s, agg, spec, req); err != nil {
			return envelope.Recorded{}, err
		}
	}
	return u.follow(ctx, p, agg, f, !c.repeated, accepted, req.GetDetach(), w)
}

func (u *UseCases) timing() output.Timing {
	return output.Timing{Beat: u.limits.Heartbeat, Patience: u.limits.OutagePatience}
}

func settled(err error) <-chan error {
	c := make(chan error, 1)
	c <- err
	return c
}

// start publishes the command. The channel brings one value: nil once the worker has accepted it, or why it has not.
func (u *UseCases) start(
	ctx context.Context, p principal.Principal, s sandbox.Sandbox, agg subject.Aggregate, spec *eventsv1.ExecSpec, req *computev1.ExecCommandRequest,
) (<-chan error, error) {
	start := &commandsv1.StartExec{Spec: spec}
	var err error
	if start.SealedEnv, err = u.sealEnv(agg.ID, req.GetEnv()); err != nil {
		return nil, err
	}
	if len(req.GetStdin()) > 0 {
		if start.SealedStdin, err = u.sealed(agg.ID, req.GetStdin()); err != nil {
			return nil, err
		}
	}
	if err := u.use(ctx, s); err != nil {
		return nil, err
	}
	inbox, err := u.inbox()
	if err != nil {
		return nil, err
	}
	cmd := &commandsv1.ExecCommand{
		CommandId: ids.Derive("exec", agg.ID), TenantId: s.Tenant, SandboxId: s.ID, ExecId: agg.ID, Actor: p.Actor,
		CorrelationId: telemetry.Correlation(ctx), Time: now(), ReplyTo: inbox.Subject,
		Command: &commandsv1.ExecCommand_Start{Start: start},
	}
	if err := u.order(ctx, subject.ExecCommand(s.Worker, s.Tenant, s.ID, agg.ID), cmd); err != nil {
		inbox.close()
		return nil, err
	}
	accepted := make(chan error, 1)
	go func() {
		defer inbox.close()
		accepted <- u.accepted(ctx, agg, inbox.next)
	}()
	return accepted, nil
}

// refused is the error of an exec that its worker did not accept: it never runs.
type refused struct{ error }

func (r *refused) Unwrap() error { return r.error }

// accepted waits until an exec was accepted or refused. The answer may be lost: then the log says that the exec began.
func (u *UseCases) accepted(ctx context.Context, agg subject.Aggregate, next nextMsg) error {
	ctx, cancel := context.WithTimeout(ctx, u.limits.StartWait)
	defer cancel()
	for {
		wait, stop := context.WithTimeout(ctx, outcomeWait)
		answered, err := u.outcome(wait, agg, next)
		stop()
		switch {
		case err != nil:
			return &refused{err}
		case answered:
			return nil
		}
		if h, err := u.log.Load(ctx, agg); err == nil && len(h.Events) > 0 {
			return nil
		}
		if ctx.Err() != nil {
			return fault.Newf(fault.Unavailable, fault.ReasonWorkerUnavailable,
				"the sandbox's worker has not taken exec %s; it is cancelled unless it was detached", agg.ID).WithRetry(5 * time.Second)
		}
	}
}

// execSpec is what the request asks for, without its secrets.
func (u *UseCases) execSpec(s sandbox.Sandbox, req *computev1.ExecCommandRequest) (*eventsv1.ExecSpec, error) {
	bad := map[string]string{}
	timeout := u.limits.ExecTimeout
	if req.GetTimeout() != nil {
		// Rounded up: 0 ms would mean the default.
		timeout = max(req.GetTimeout().AsDuration(), time.Millisecond)
	}
	if timeout > u.limits.MaxExecTimeout {
		bad["timeout"] = "is over the maximum of this deployment, " + u.limits.MaxExecTimeout.String()
	}
	spec := &eventsv1.ExecSpec{
		Command: req.GetCommand(), Args: req.GetArgs(), WorkingDir: req.GetWorkingDir(), TimeoutMs: uint64(timeout.Milliseconds()),
		EnvKeys: slices.Sorted(maps.Keys(req.GetEnv())), StdinBytes: uint64(len(req.GetStdin())), Detach: req.GetDetach(), SessionId: s.SessionID,
		OutputLimitBytes: req.GetOutputLimitBytes(), StopAtOutputLimit: req.GetStopAtOutputLimit(), KeepStdin: req.GetKeepStdin(),
	}
	if t := req.GetTerminal(); t != nil {
		spec.Terminal = &commonv1.TerminalSize{Columns: cmp.Or(t.GetColumns(), 80), Rows: cmp.Or(t.GetRows(), 24)}
	}
	if proto.Size(spec) > maxSpecBytes {
		bad["args"] = "command, args and the names of env together may have 128 KiB; put more into a file or stdin"
	}
	if len(bad) > 0 {
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request is not valid").WithFields(bad)
	}
	return spec, nil
}

// maxSpecBytes keeps a started event under the 256 KiB that stream EVT takes.
const maxSpecBytes = 128 << 10

// Attach follows an exec from behind chunk after on, running or ended.
func (u *UseCases) Attach(ctx context.Context, p principal.Principal, sandboxID, execID string, after uint64, w Watcher) (envelope.Recorded, error) {
	if err := p.Need(reading); err != nil {
		return envelope.Recorded{}, err
	}
	x, err := u.exec(ctx, p, sandboxID, execID)
	if err != nil {
		return envelope.Recorded{}, err
	}
	agg := subject.Exec(x.Tenant, x.Sandbox, execID)
	after = min(after, math.MaxUint64-1) // the next one has a number too
	f, err := output.Open(u.js, u.log, u.memory, agg, after, u.timing())
	if err != nil {
		return envelope.Recorded{}, err
	}
	defer f.Close()
	if err := w.Named(execID); err != nil {
		return envelope.Recorded{}, err
	}
	return u.follow(ctx, p, agg, f, false, settled(nil), x.Spec.GetDetach(), w)
}

// follow runs the follower and, when its reader goes away first, sees to it that nobody's command does not run for ever.
func (u *UseCases) follow(
	ctx context.Context, p principal.Principal, agg subject.Aggregate, f *output.Follower, fresh bool, accepted <-chan error, detached bool, w Watcher,
) (envelope.Recorded, error) {
	leave, err := u.attend(agg, f.Pending)
	if err != nil {
		return envelope.Recorded{}, err
	}
	end, err := f.Run(ctx, fresh, accepted, w.Output)
	leave()
	var never *refused
	switch {
	case err == nil:
		u.seen.put(agg, end.Seq)
		return end, nil
	case errors.As(err, &never):
		return end, never.error
	case !detached:
		go u.cancelAbandoned(p, agg)
	}
	if ctx.Err() != nil {
		return end, fault.New(fault.Cancelled, fault.ReasonCancelled, "the caller went away").Because(err)
	}
	return end, err
}

// attend makes this reader known to any gateway that asks whether the exec still has one, and tells it when the worker cannot record the end.
func (u *UseCases) attend(agg subject.Aggregate, pending func()) (leave func(), err error) {
	sub, err := u.nc.Subscribe(subject.Readers(agg.Tenant, agg.Sandbox, agg.ID), func(m *nats.Msg) {
		if string(m.Data) == sandbox.RecordPending {
			pending()
			return
		}
		_ = m.Respond(nil)
	})
	if err != nil {
		return nil, unreachable(err)
	}
	return func() { _ = sub.Unsubscribe() }, nil
}

// cancelAbandoned waits the grace time and cancels the exec if it runs and nobody reads it. A gateway that is killed meanwhile
// leaves the exec to its timeout.
func (u *UseCases) cancelAbandoned(p principal.Principal, agg subject.Aggregate) {
	const attempts = 10
	for range attempts {
		select {
		case <-time.After(u.limits.DisconnectGrace):
		case <-u.base.Done():
			return
		}
		switch attended, err := u.attended(agg); {
		case err != nil:
			continue // a gateway that does not answer may have a reader: ask again
		case attended:
			return
		}
		ctx, cancel := context.WithTimeout(u.base, 2*outcomeWait)
		err := u.cancel(ctx, p, agg, "client_gone")
		cancel()
		if err == nil || fault.CodeOf(err) != fault.Unavailable {
			return
		}
		u.logger.WarnContext(u.base, "an exec without a reader could not be cancelled yet", "exec", agg.ID, "error", err)
	}
}

// attended reports whether any gateway has a reader of the exec.
func (u *UseCases) attended(agg subject.Aggregate) (bool, error) {
	ctx, cancel := context.WithTimeout(u.base, outcomeWait)
	defer cancel()
	_, err := u.nc.RequestWithContext(ctx, subject.Readers(agg.Tenant, agg.Sandbox, agg.ID), nil)
	if errors.Is(err, nats.ErrNoResponders) {
		return false, nil
	}
	return err == nil, err
}

// Cancel ends an exec's whole process tree. One that has ended is left as it is, so it may be repeated with or without a key.
func (u *UseCases) Cancel(ctx context.Context, p principal.Principal, key, sandboxID, execID string) error {
	if err := p.Need(scopes.Execute); err != nil {
		return err
	}
	x, err := u.exec(ctx, p, sandboxID, execID)
	if err != nil {
		return err
	}
	req := &computev1.CancelExecRequest{SandboxId: sandboxID, ExecId: execID}
	if _, err := u.claim(ctx, x.Tenant, "CancelExec", key, p.Actor, req); err != nil {
		return err
	}
	return u.cancel(ctx, p, subject.Exec(x.Tenant, x.Sandbox, execID), "cancelled")
}

func (u *UseCases) cancel(ctx context.Context, p principal.Principal, agg subject.Aggregate, reason string) error {
	h, err := u.history(ctx, agg)
	if err != nil {
		return err
	}
	x, err := sandbox.FoldExec(h)
	if err != nil || x.Over() {
		return err
	}
	worker := x.Worker
	if worker == "" {
		s, err := u.load(ctx, subject.Sandbox(agg.Tenant, agg.Sandbox))
		if err != nil {
			return err
		}
		worker = s.Worker
	}
	inbox, err := u.inbox()
	if err != nil {
		return err
	}
	defer inbox.close()
	cmd := &commandsv1.ExecCommand{
		CommandId: ids.New(), TenantId: agg.Tenant, SandboxId: agg.Sandbox, ExecId: agg.ID, Actor: p.Actor,
		CorrelationId: telemetry.Correlation(ctx), Time: now(), ReplyTo: inbox.Subject,
		Command: &commandsv1.ExecCommand_Cancel{Cancel: &commandsv1.CancelExec{Reason: reason}},
	}
	if err := u.order(ctx, subject.ExecCommand(worker, agg.Tenant, agg.Sandbox, agg.ID), cmd); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, outcomeWait)
	defer cancel()
	_, err = u.outcome(wait, agg, inbox.next)
	return err
}

// Receipt returns what the log says of an exec.
func (u *UseCases) Receipt(ctx context.Context, p principal.Principal, sandboxID, execID string) (sandbox.Exec, error) {
	if err := p.Need(reading); err != nil {
		return sandbox.Exec{}, err
	}
	return u.exec(ctx, p, sandboxID, execID)
}

// reading is what lets a caller see an exec: who may run commands has to learn what became of them.
const reading = scopes.Execute | scopes.Inspect

// ReceiptByKey is Receipt for who knows only the idempotency key that a command came with, for as long as keys are remembered.
func (u *UseCases) ReceiptByKey(ctx context.Context, p principal.Principal, sandboxID, key string) (sandbox.Exec, error) {
	if err := p.Need(reading); err != nil {
		return sandbox.Exec{}, err
	}
	if err := checkKey(key); err != nil {
		return sandbox.Exec{}, err
	}
	agg, err := u.aggregate(ctx, p, sandboxID)
	if err != nil {
		return sandbox.Exec{}, err
	}
	c, known, err := u.claimed(ctx, agg.Tenant, "ExecCommand", key)
	if err == nil && !known {
		err = fault.New(fault.NotFound, fault.ReasonExecNotFound, "no command came with this idempotency key")
	}
	if err != nil {
		return sandbox.Exec{}, err
	}
	return u.exec(ctx, p, sandboxID, c.id())
}

// exec is for showing, attaching and finding: what decides about it folds its history again.
func (u *UseCases) exec(ctx context.Context, p principal.Principal, sandboxID, execID string) (sandbox.Exec, error) {
	agg, err := u.locateExec(ctx, p, sandboxID, execID)
	if err != nil {
		return sandbox.Exec{}, err
	}
	h, err := u.history(ctx, agg)
	if err != nil {
		return sandbox.Exec{}, err
	}
	if len(h.Events) == 0 {
		return sandbox.Exec{}, fault.Newf(fault.NotFound, fault.ReasonExecNotFound, "there is no exec %s", execID)
	}
	return sandbox.ShowExec(h)
}

// locateExec names the aggregate of an exec that the caller may see. Without a sandbox id it is searched for.
func (u *UseCases) locateExec(ctx context.Context, p principal.Principal, sandboxID, execID string) (subject.Aggregate, error) {
	if sandboxID != "" && !p.Development() {
		agg := subject.Exec(p.Tenant, sandboxID, execID)
		calls.About(ctx, agg)
		return agg, nil
	}
	agg, err := u.log.Find(ctx, subject.AnySandboxExec(p.Tenant, execID))
	if fault.CodeOf(err) == fault.NotFound || err == nil && sandboxID != "" && agg.Sandbox != sandboxID {
		return agg, fault.Newf(fault.NotFound, fault.ReasonExecNotFound, "there is no exec %s", execID)
	}
	if err == nil {
		calls.About(ctx, agg)
	}
	return agg, err
}
