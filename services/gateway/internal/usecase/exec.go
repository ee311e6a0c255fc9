package usecase

import (
	"context"
	"maps"
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
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/output"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// Watcher is who follows an exec.
type Watcher interface {
	// Accepted is called once with the exec's id before anything else.
	Accepted(execID string) error
	// Output is called for each chunk in order, and for heartbeats.
	Output(output.Item) error
}

// Exec runs a command and tells w of its output until its end, which it returns: ExecCompleted or ExecLost. When ctx ends
// first, the command goes on for the grace time and is cancelled unless it is detached or somebody attached.
func (u *UseCases) Exec(ctx context.Context, p principal.Principal, key string, req *computev1.ExecCommandRequest, w Watcher) (envelope.Recorded, error) {
	s, err := u.locate(ctx, p, req.GetSandboxId())
	if err != nil {
		return envelope.Recorded{}, err
	}
	id := ids.New()
	if key != "" {
		id = ids.Derive("exec", s.Tenant, s.ID, key)
	}
	start, err := u.startCommand(s, id, req)
	if err != nil {
		return envelope.Recorded{}, err
	}
	if err := u.claim(ctx, s.Tenant, "ExecCommand", key, p.Actor, req); err != nil {
		return envelope.Recorded{}, err
	}
	agg := subject.Exec(s.Tenant, s.ID, id)
	known := false
	if key != "" {
		h, err := u.log.Load(ctx, agg)
		if err != nil {
			return envelope.Recorded{}, err
		}
		known = len(h.Events) > 0
	}
	if err := over(s); err != nil && !known {
		return envelope.Recorded{}, err
	}
	f, err := output.Open(u.nc, u.js, u.log, agg, 0)
	if err != nil {
		return envelope.Recorded{}, err
	}
	defer f.Close()
	failed := make(chan error, 1)
	if !known {
		if known, err = u.start(ctx, p, s, id, key, start, failed); err != nil {
			return envelope.Recorded{}, err
		}
	}
	if err := w.Accepted(id); err != nil {
		return envelope.Recorded{}, err
	}
	return u.follow(ctx, p, agg, f, !known, failed, req.GetDetach(), w)
}

// start publishes the command. Its outcome arrives on failed in the background: a refusal ends the stream, an acceptance says
// nothing that the output does not.
func (u *UseCases) start(ctx context.Context, p principal.Principal, s sandbox.Sandbox, id, key string, start *commandsv1.StartExec, failed chan<- error) (known bool, err error) {
	inbox, err := u.inbox()
	if err != nil {
		return false, err
	}
	cmd := &commandsv1.ExecCommand{
		CommandId: commandID("exec", s.Tenant+"."+s.ID, key), TenantId: s.Tenant, SandboxId: s.ID, ExecId: id, Actor: p.Actor,
		CorrelationId: telemetry.Correlation(ctx), Time: now(), ReplyTo: inbox.Subject,
		Command: &commandsv1.ExecCommand_Start{Start: start},
	}
	duplicate, err := u.order(ctx, subject.ExecCommand(s.Worker, s.Tenant, s.ID, id), cmd.GetCommandId(), cmd)
	if err != nil || duplicate {
		_ = inbox.Unsubscribe() // the connection is closing if this fails
		return duplicate, err
	}
	go func() {
		defer inbox.Unsubscribe() //nolint:errcheck // the connection is closing if this fails
		wait, cancel := context.WithTimeout(ctx, u.limits.StartWait)
		defer cancel()
		_, ok, err := outcome(wait, inbox.NextMsgWithContext)
		if !ok && ctx.Err() == nil {
			err = fault.Newf(fault.Unavailable, fault.ReasonWorkerUnavailable,
				"the sandbox's worker has not taken exec %s; it may still run: attach to it or read its receipt", id)
		}
		if err != nil {
			failed <- err
		}
	}()
	return false, nil
}

func (u *UseCases) startCommand(s sandbox.Sandbox, id string, req *computev1.ExecCommandRequest) (*commandsv1.StartExec, error) {
	timeout := u.limits.ExecTimeout
	if req.GetTimeout() != nil {
		if timeout = req.GetTimeout().AsDuration(); timeout > u.limits.MaxExecTimeout {
			return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request is not valid").
				WithFields(map[string]string{"timeout": "is over the maximum of this deployment, " + u.limits.MaxExecTimeout.String()})
		}
	}
	start := &commandsv1.StartExec{Spec: &eventsv1.ExecSpec{
		Command: req.GetCommand(), Args: req.GetArgs(), WorkingDir: req.GetWorkingDir(), TimeoutMs: uint64(timeout.Milliseconds()),
		EnvKeys: slices.Sorted(maps.Keys(req.GetEnv())), StdinBytes: uint64(len(req.GetStdin())), Detach: req.GetDetach(), SessionId: s.SessionID,
	}}
	if size := proto.Size(start); size > maxSpecBytes {
		return nil, fault.New(fault.InvalidArgument, fault.ReasonTooLarge, "the command is too large").
			WithFields(map[string]string{"args": "command and args together may have 128 KiB; put more into a file or stdin"})
	}
	var err error
	if start.SealedEnv, err = u.sealEnv(id, req.GetEnv()); err != nil {
		return nil, err
	}
	if len(req.GetStdin()) > 0 {
		start.SealedStdin, err = u.sealed(id, req.GetStdin())
	}
	return start, err
}

// maxSpecBytes keeps a started event under the 256 KiB that stream EVT takes.
const maxSpecBytes = 128 << 10

// Attach follows an exec from behind chunk after on, running or ended.
func (u *UseCases) Attach(ctx context.Context, p principal.Principal, sandboxID, execID string, after uint64, w Watcher) (envelope.Recorded, error) {
	x, err := u.exec(ctx, p, sandboxID, execID)
	if err != nil {
		return envelope.Recorded{}, err
	}
	agg := subject.Exec(x.Tenant, x.Sandbox, execID)
	f, err := output.Open(u.nc, u.js, u.log, agg, after)
	if err != nil {
		return envelope.Recorded{}, err
	}
	defer f.Close()
	if err := w.Accepted(execID); err != nil {
		return envelope.Recorded{}, err
	}
	return u.follow(ctx, p, agg, f, false, nil, x.Spec.GetDetach(), w)
}

// follow runs the follower and, when its reader goes away first, sees to it that nobody's command does not run for ever.
func (u *UseCases) follow(ctx context.Context, p principal.Principal, agg subject.Aggregate, f *output.Follower, fresh bool, failed <-chan error, detached bool, w Watcher) (envelope.Recorded, error) {
	leave, err := u.attend(agg)
	if err != nil {
		return envelope.Recorded{}, err
	}
	end, err := f.Run(ctx, fresh, failed, w.Output)
	leave()
	if err != nil && ctx.Err() != nil {
		if !detached {
			go u.cancelAbandoned(p, agg)
		}
		return end, fault.New(fault.Cancelled, fault.ReasonCancelled, "the caller went away").Because(err)
	}
	return end, err
}

// attend makes this reader known to any gateway that asks whether the exec still has one.
func (u *UseCases) attend(agg subject.Aggregate) (leave func(), err error) {
	sub, err := u.nc.Subscribe(subject.Readers(agg.Tenant, agg.Sandbox, agg.ID), func(m *nats.Msg) { _ = m.Respond(nil) })
	if err != nil {
		return nil, unreachable(err)
	}
	return func() { _ = sub.Unsubscribe() }, nil
}

// cancelAbandoned waits the grace time and cancels the exec if it runs and nobody reads it. A gateway that is killed meanwhile
// leaves the exec to its timeout.
func (u *UseCases) cancelAbandoned(p principal.Principal, agg subject.Aggregate) {
	select {
	case <-time.After(u.limits.DisconnectGrace):
	case <-u.base.Done():
		return
	}
	ctx, cancel := context.WithTimeout(u.base, 10*time.Second)
	defer cancel()
	if _, err := u.nc.RequestWithContext(ctx, subject.Readers(agg.Tenant, agg.Sandbox, agg.ID), nil); err == nil {
		return
	}
	if err := u.cancel(ctx, p, agg, "client_gone"); err != nil && fault.CodeOf(err) != fault.NotFound {
		u.logger.WarnContext(ctx, "an exec without a reader could not be cancelled", "exec", agg.ID, "error", err)
	}
}

// Cancel ends an exec's whole process tree. One that has ended is left as it is.
func (u *UseCases) Cancel(ctx context.Context, p principal.Principal, sandboxID, execID string) error {
	x, err := u.exec(ctx, p, sandboxID, execID)
	if err != nil {
		return err
	}
	return u.cancel(ctx, p, subject.Exec(x.Tenant, x.Sandbox, execID), "cancelled")
}

func (u *UseCases) cancel(ctx context.Context, p principal.Principal, agg subject.Aggregate, reason string) error {
	h, err := u.log.Load(ctx, agg)
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
	defer inbox.Unsubscribe() //nolint:errcheck // the connection is closing if this fails
	cmd := &commandsv1.ExecCommand{
		CommandId: ids.New(), TenantId: agg.Tenant, SandboxId: agg.Sandbox, ExecId: agg.ID, Actor: p.Actor,
		CorrelationId: telemetry.Correlation(ctx), Time: now(), ReplyTo: inbox.Subject,
		Command: &commandsv1.ExecCommand_Cancel{Cancel: &commandsv1.CancelExec{Reason: reason}},
	}
	if _, err := u.order(ctx, subject.ExecCommand(worker, agg.Tenant, agg.Sandbox, agg.ID), cmd.GetCommandId(), cmd); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, outcomeWait)
	defer cancel()
	_, _, err = outcome(wait, inbox.NextMsgWithContext)
	return err
}

// Receipt returns what the log says of an exec.
func (u *UseCases) Receipt(ctx context.Context, p principal.Principal, sandboxID, execID string) (sandbox.Exec, error) {
	return u.exec(ctx, p, sandboxID, execID)
}

func (u *UseCases) exec(ctx context.Context, p principal.Principal, sandboxID, execID string) (sandbox.Exec, error) {
	agg, err := u.locateExec(ctx, p, sandboxID, execID)
	if err != nil {
		return sandbox.Exec{}, err
	}
	h, err := u.log.Load(ctx, agg)
	if err != nil {
		return sandbox.Exec{}, err
	}
	if len(h.Events) == 0 {
		return sandbox.Exec{}, fault.Newf(fault.NotFound, fault.ReasonExecNotFound, "there is no exec %s", execID)
	}
	return sandbox.FoldExec(h)
}

// locateExec names the aggregate of an exec that the caller may see. Without a sandbox id it is searched for.
func (u *UseCases) locateExec(ctx context.Context, p principal.Principal, sandboxID, execID string) (subject.Aggregate, error) {
	if sandboxID != "" && !p.Development() {
		return subject.Exec(p.Tenant, sandboxID, execID), nil
	}
	agg, err := u.log.Find(ctx, subject.AnySandboxExec(p.Tenant, execID))
	if fault.CodeOf(err) == fault.NotFound || err == nil && sandboxID != "" && agg.Sandbox != sandboxID {
		return agg, fault.Newf(fault.NotFound, fault.ReasonExecNotFound, "there is no exec %s", execID)
	}
	return agg, err
}
