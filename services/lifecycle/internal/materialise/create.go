package materialise

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/worker"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/history"
)

// errDestroyed is the cause of a start's cancellation when its end was decided meanwhile, errLate when its deadline passed.
var (
	errDestroyed = errors.New("the sandbox is destroyed while it starts")
	errLate      = errors.New("the start deadline has passed")
)

// recheck is how often a start looks into the log for its end, should the live message about it get lost.
const recheck = 2 * time.Second

// lastLook bounds how long a death waits for what its sandbox has used: whoever runs something there is to know of it within two seconds,
// and a host that died with it does not answer.
const lastLook = time.Second

// startAttempts bounds the starts of one sandbox where a later one may help. The driver has its own, shorter attempts.
const startAttempts = 4

// materialise makes the sandbox, or finishes what an earlier attempt began.
func (r *Role) materialise(ctx context.Context, s sandbox.Sandbox, m history.Meta, sealedEnv []byte, attempt int) error {
	switch {
	case !s.Exists():
		return worker.Poison(fault.New(fault.NotFound, fault.ReasonSandboxNotFound, "the sandbox was never requested"))
	case s.State == sandbox.Ready, s.State == sandbox.Stopping, s.State == sandbox.Stopped:
		return nil
	case s.State == sandbox.Failed:
		return r.Clear(ctx, s)
	case s.Ending():
		return r.teardown(ctx, s, m)
	}
	late := s.OrderedAt.Add(r.cfg.StartDeadline)
	if !r.now().Before(late) {
		if s.State == sandbox.Starting {
			return r.FailLate(ctx, s, m)
		}
		return r.Fail(ctx, s, m, fault.ReasonStartDeadline, "starting", fmt.Sprintf("it was not started within %s", r.cfg.StartDeadline))
	}
	s, err := r.record(ctx, s, "starting", m, func(s sandbox.Sandbox, _ time.Time) sandbox.Command {
		if s.Ending() || s.State == sandbox.Stopping || s.State == sandbox.Stopped {
			return nil
		}
		return sandbox.Start{Worker: r.cfg.Name, Attempt: uint32(max(attempt, 1))} //nolint:gosec // attempts are few
	})
	if err != nil {
		return err
	}
	if s.State != sandbox.Starting {
		return r.materialise(ctx, s, m, sealedEnv, attempt)
	}
	if sealedEnv, err = r.note(ctx, s, sealedEnv); err != nil {
		return err
	}
	env, err := r.open(s.ID, sealedEnv)
	if err != nil {
		return r.fail(ctx, s, m, "environment", err)
	}
	wanted := spec(s, env)
	wanted.Note, wanted.Resume = sealedEnv, s.Restarting()
	created, waits, err := r.start(ctx, s, m, wanted, late)
	if err != nil {
		return r.unstarted(ctx, s, m, err, waits, attempt)
	}
	s, err = r.record(ctx, s, "ready", m, func(s sandbox.Sandbox, _ time.Time) sandbox.Command {
		if s.State != sandbox.Starting {
			return nil
		}
		return sandbox.MarkReady{
			Worker: r.cfg.Name, RuntimeID: created.RuntimeID, Hostname: Hostname(s.ID), ImageDigest: created.ImageDigest,
			Warm: created.Warm, Phases: phases(created.Phases), Endpoint: endpoint(created.Endpoint),
		}
	})
	if err != nil {
		return err
	}
	if s.State == sandbox.Ready {
		r.log.Info("sandbox ready", "tenant", s.Tenant, "sandbox", s.ID, "took", s.RunningSince.Sub(s.OrderedAt))
		return nil
	}
	return r.materialise(ctx, s, m, sealedEnv, attempt)
}

// Hostname of a sandbox inside. It is not unique.
func Hostname(id string) string { return "sandbox-" + ids.Short(id) }

func (r *Role) open(id string, sealed []byte) (map[string]string, error) {
	if len(sealed) == 0 {
		return nil, nil
	}
	failed := fault.New(fault.Internal, fault.ReasonInternal, "its environment cannot be read: gateway and worker must share one key file")
	plain, err := r.seal.Open(sealed, []byte(id))
	if err != nil {
		return nil, failed.Because(err)
	}
	env := &commandsv1.Env{}
	if err := proto.Unmarshal(plain, env); err != nil {
		// The decoder's error may quote what it read.
		return nil, failed
	}
	return env.GetVars(), nil
}

// start runs the driver until the sandbox answers. It is stopped at once when the sandbox's end is decided or it is too late. waits
// is what the driver said last that it waits for.
func (r *Role) start(
	ctx context.Context, s sandbox.Sandbox, m history.Meta, wanted runtime.Spec, late time.Time,
) (created runtime.Created, waits runtime.Progress, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(late.Sub(r.now()), func() { cancel(errLate) })
	defer timer.Stop()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		r.watchEnd(ctx, s, cancel)
	}()
	told := r.report(ctx, s, m)
	traced, span := trace.SpanFromContext(ctx).TracerProvider().Tracer("github.com/sandtrail/sandtrail/services/lifecycle").Start(ctx, "runtime.create")
	created, err = r.driver.Create(runtime.WithProgress(traced, told.set), wanted)
	span.End()
	cause := context.Cause(ctx)
	cancel(nil)
	<-watched
	told.wait()
	if err != nil && cause != nil {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return created, told.last(), err
}

// watchEnd cancels when the log says that the sandbox's end was decided.
func (r *Role) watchEnd(ctx context.Context, s sandbox.Sandbox, cancel context.CancelCauseFunc) {
	look := make(chan struct{}, 1)
	hint := func() {
		select {
		case look <- struct{}{}:
		default:
		}
	}
	sub, err := r.nc.Subscribe(subject.Live(subject.Sandbox(s.Tenant, s.ID).Subject()), func(*nats.Msg) { hint() })
	if err == nil {
		defer func() { _ = sub.Unsubscribe() }()
	}
	hint()
	tick := time.NewTicker(recheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look:
		case <-tick.C:
		}
		if now, err := history.Load(ctx, r.events, s.Tenant, s.ID); err == nil && now.Ending() {
			cancel(errDestroyed)
			return
		}
	}
}

// unstarted says what a start without success means.
func (r *Role) unstarted(ctx context.Context, s sandbox.Sandbox, m history.Meta, err error, waits runtime.Progress, attempt int) error {
	switch {
	case ctx.Err() != nil:
		// This process ends; the repeated command goes on with it.
		return ctx.Err()
	case errors.Is(err, errDestroyed):
		now, err := history.Current(ctx, r.events, s.Tenant, s.ID)
		if err != nil {
			return err
		}
		if now.State == sandbox.Failed {
			return r.Clear(ctx, now)
		}
		return r.teardown(ctx, now, m)
	case errors.Is(err, errLate):
		message := waits.Message
		if f := fault.From(err); f.Reason != fault.ReasonInternal && f.Code != fault.Cancelled && f.Code != fault.DeadlineExceeded {
			message = f.Message
		}
		return r.Fail(ctx, s, m, fault.ReasonStartDeadline, "starting", r.late(message))
	case fault.CodeOf(err) == fault.Unavailable && attempt < startAttempts:
		return err
	}
	return r.fail(ctx, s, m, "starting", err)
}

// late says that a start took too long, and what it waited for where that is known.
func (r *Role) late(waited string) string {
	message := fmt.Sprintf("it was not up within %s", r.cfg.StartDeadline)
	if waited != "" {
		message += ": " + waited
	}
	return message
}

// FailLate is Fail for a start that nobody works on any more when its deadline has passed.
func (r *Role) FailLate(ctx context.Context, s sandbox.Sandbox, m history.Meta) error {
	return r.Fail(ctx, s, m, fault.ReasonStartDeadline, s.State, r.late(s.Message))
}

func (r *Role) fail(ctx context.Context, s sandbox.Sandbox, m history.Meta, phase string, err error) error {
	f := fault.From(err)
	r.log.Warn("sandbox failed to start", "tenant", s.Tenant, "sandbox", s.ID, "correlation", m.Correlation, "error", err)
	reason := f.Reason
	if reason == fault.ReasonInternal {
		reason = fault.ReasonRuntimeFailed
	}
	return r.Fail(ctx, s, m, reason, phase, f.Message)
}

// Fail records that the sandbox did not start or ended by itself, then removes what is left of it. One that was stopped before is left so
// where its start fails. Where removing fails the caller tries again.
func (r *Role) Fail(ctx context.Context, s sandbox.Sandbox, m history.Meta, reason fault.Reason, phase, message string) error {
	if s.Restarting() {
		return r.giveUp(ctx, s, m, reason, message)
	}
	var used *runtime.Usage
	if s.State == sandbox.Ready {
		look, cancel := context.WithTimeout(ctx, lastLook)
		if u, err := r.driver.Stats(look, s.ID); err == nil {
			used = &u
		}
		cancel()
	}
	return r.failed(ctx, s, m, reason, phase, message, used)
}

func (r *Role) failed(
	ctx context.Context, s sandbox.Sandbox, m history.Meta, reason fault.Reason, phase, message string, used *runtime.Usage,
) error {
	s, err := r.record(ctx, s, "failed", m, func(_ sandbox.Sandbox, at time.Time) sandbox.Command {
		c := sandbox.Fail{At: at, Reason: reason, Message: message, Phase: phase}
		if used != nil {
			c.Usage = Metrics(*used)
		}
		return c
	})
	if err != nil {
		return err
	}
	if s.State == sandbox.Destroying {
		return r.teardown(ctx, s, m)
	}
	return r.Clear(ctx, s)
}

// Clear removes what is left of a sandbox that is over, its workspace apart, and gives its places back.
func (r *Role) Clear(ctx context.Context, s sandbox.Sandbox) error {
	end, cancel := context.WithTimeout(ctx, r.cfg.EndTimeout)
	defer cancel()
	if _, err := r.driver.Destroy(end, s.ID); err != nil {
		return fmt.Errorf("remove the remains of sandbox %s: %w", s.ID, err)
	}
	return r.places.Release(ctx, s.Tenant, r.cfg.Name, s.ID)
}

func spec(s sandbox.Sandbox, env map[string]string) runtime.Spec {
	return runtime.Spec{
		ID: s.ID, Tenant: s.Tenant, Image: s.Image, Hostname: Hostname(s.ID), Env: maps.Clone(env),
		MountPath: s.Workspace.GetMountPath(), WorkspaceBytes: s.Workspace.GetSizeBytes(),
		CPUMillis: s.Limits.GetCpuMillis(), MemoryBytes: s.Limits.GetMemoryBytes(), PIDs: s.Limits.GetPids(),
		MaxRuntime: time.Duration(s.Limits.GetMaxRuntimeMs()) * time.Millisecond, //nolint:gosec // bounded by the scheduler
	}
}

func endpoint(e *runtime.Endpoint) *eventsv1.Endpoint {
	if e == nil {
		return nil
	}
	return &eventsv1.Endpoint{Address: e.Address, Runtime: e.Runtime, Uid: e.UID, KeySha256: e.KeySHA256}
}

func phases(all []runtime.Phase) []*eventsv1.Phase {
	out := make([]*eventsv1.Phase, 0, len(all))
	for _, p := range slices.Clip(all) {
		out = append(out, &eventsv1.Phase{Name: p.Name, DurationUs: uint64(max(p.Took, 0) / time.Microsecond)}) //nolint:gosec // not negative
	}
	return out
}
