// Package sweep finds what is over and asks for its end. It decides from the log and a clock alone: never before delete-after,
// never about a sandbox that lives within its time.
package sweep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
)

// Kinds of findings and what is done about them.
const (
	KindWorkspace = "workspace"
	KindSandbox   = "sandbox"
	KindView      = "view"

	ActionDelete  = "delete"
	ActionForget  = "forget"
	ActionDestroy = "destroy"
	ActionEnd     = "end"
)

// Finding is one thing that is over.
type Finding struct {
	// Kind is KindWorkspace, KindSandbox or KindView, ID the sandbox's id.
	Kind   string
	ID     string
	Tenant string
	// Reason is for people: why it is over.
	Reason string
	// Action is what is asked for: delete a workspace, destroy a sandbox, or end one again whose end did not come; or what is done:
	// forget a view.
	Action string
}

const (
	// stuck is how long an end may take before it is asked for again.
	stuck = 10 * time.Minute
	// window is how long one finding makes one command: repetitions within it are dropped by the stream.
	window = 5 * time.Minute
	// MaxFindings bounds one pass; what is beyond is found by the next one.
	MaxFindings = 1000
)

// Actor is who asks.
const Actor = "service:gc"

// Sweeper looks through views, asks the log and sends commands.
type Sweeper struct {
	js     jetstream.JetStream
	events eventlog.Log
	now    func() time.Time
	tracer trace.Tracer
}

// New makes a sweeper with a clock.
func New(js jetstream.JetStream, events eventlog.Log, now func() time.Time, tracer trace.Tracer) *Sweeper {
	return &Sweeper{js: js, events: events, now: now, tracer: tracer}
}

// Relevant keeps the views that can become due: sandboxes that are not destroyed, or whose workspace is still there.
func Relevant(v *commandsv1.SandboxView) bool {
	return v.GetState() != sandbox.Destroyed || v.GetWorkspaceDeletedAt() == nil
}

// Due is when a view is to be looked at; zero is never.
func Due(v *commandsv1.SandboxView) time.Time {
	switch {
	case v.GetWorkspaceDeletedAt() != nil:
		return time.Time{}
	case v.GetState() == sandbox.Destroyed:
		return timeOf(v.GetWorkspaceDeleteAfter())
	case v.GetState() == sandbox.Destroying:
		// A view does not say since when, so the log is asked.
		return timeOf(v.GetCreatedAt())
	}
	if v.GetExpiresAt() != nil {
		return timeOf(v.GetExpiresAt())
	}
	return timeOf(v.GetRequested().GetExpiresAt())
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// Sweep looks at the views that are due and returns what is over, by tenant and id. Unless dry it asks for the end of each: the
// commands are sent when it returns, not carried out. One that cannot be looked at does not keep the others from it.
func (s *Sweeper) Sweep(ctx context.Context, views []*commandsv1.SandboxView, dry bool) ([]Finding, error) {
	ctx, span := s.tracer.Start(ctx, "gc.pass")
	defer span.End()
	now := s.now()
	var found []Finding
	var errs []error
	for _, v := range views {
		due := Due(v)
		if due.IsZero() || now.Before(due) {
			continue
		}
		if len(found) >= MaxFindings {
			break
		}
		f, send, err := s.look(ctx, v.GetTenantId(), v.GetSandboxId(), now)
		if err == nil && f != nil {
			found = append(found, *f)
			if !dry {
				err = send(ctx)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("sandbox %s: %w", v.GetSandboxId(), err))
		}
	}
	slices.SortFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.ID, b.ID))
	})
	return found, errors.Join(errs...)
}

// traced makes a span of sending what ends a finding, which leads to the trace in which the sandbox was made.
func (s *Sweeper) traced(h eventlog.History, f *Finding, send func(context.Context) error) func(context.Context) error {
	if f == nil || len(h.Events) == 0 {
		return send
	}
	made := trace.SpanContextFromContext(telemetry.Continue(context.Background(), h.Events[0].Meta))
	return func(ctx context.Context) error {
		ctx, span := s.tracer.Start(ctx, "gc.ask", trace.WithSpanKind(trace.SpanKindProducer), trace.WithLinks(trace.Link{SpanContext: made}),
			trace.WithAttributes(
				attribute.String("sandtrail.sandbox", f.ID), attribute.String("sandtrail.kind", f.Kind), attribute.String("sandtrail.action", f.Action),
			))
		defer span.End()
		err := send(ctx)
		if err != nil {
			span.SetStatus(codes.Error, "not sent")
		}
		return err
	}
}

// look asks the log whether a sandbox or its workspace is over.
func (s *Sweeper) look(ctx context.Context, tenant, id string, now time.Time) (*Finding, func(context.Context) error, error) {
	h, err := s.events.Load(ctx, subject.Sandbox(tenant, id))
	if err != nil {
		return nil, nil, err
	}
	sb, err := sandbox.Fold(h)
	if err != nil {
		return nil, nil, err
	}
	f, send, err := s.judge(ctx, sb, now)
	return f, s.traced(h, f, send), err
}

func (s *Sweeper) judge(ctx context.Context, sb sandbox.Sandbox, now time.Time) (*Finding, func(context.Context) error, error) {
	f := &Finding{Kind: KindSandbox, ID: sb.ID, Tenant: sb.Tenant}
	switch {
	case sb.State == sandbox.Destroyed:
		return s.workspace(ctx, sb, now)
	case sb.State == sandbox.Destroying && now.Sub(sb.DestroyingAt) >= stuck:
		f.Action, f.Reason = ActionEnd, "it is being destroyed since "+stamp(sb.DestroyingAt)
		return f, func(ctx context.Context) error { return s.end(ctx, sb, now) }, nil
	case sb.Expired(now):
		f.Action, f.Reason = ActionDestroy, "its time was over at "+stamp(sb.ExpiresAt)
		return f, func(ctx context.Context) error { return s.expire(ctx, sb, now) }, nil
	}
	return nil, nil, nil
}

func (s *Sweeper) workspace(ctx context.Context, sb sandbox.Sandbox, now time.Time) (*Finding, func(context.Context) error, error) {
	h, err := s.events.Load(ctx, subject.Workspace(sb.Tenant, sb.ID))
	if err != nil {
		return nil, nil, err
	}
	disk, err := sandbox.FoldWorkspace(h)
	if err != nil || !disk.Due(now) {
		return nil, nil, err
	}
	f := &Finding{
		Kind: KindWorkspace, ID: sb.ID, Tenant: sb.Tenant, Action: ActionDelete,
		Reason: "it was to be kept until " + stamp(disk.DeleteAfter),
	}
	return f, func(ctx context.Context) error {
		return s.worker(ctx, disk.Worker, &commandsv1.WorkerCommand{
			CommandId: commandID("delete-workspace", sb.ID, now), TenantId: sb.Tenant, SandboxId: sb.ID,
			Command: &commandsv1.WorkerCommand_DeleteWorkspace{DeleteWorkspace: &commandsv1.DeleteWorkspace{Reason: sandbox.ReasonDeleteAfter}},
		}, now)
	}, nil
}

func (s *Sweeper) end(ctx context.Context, sb sandbox.Sandbox, now time.Time) error {
	return s.worker(ctx, sb.Worker, &commandsv1.WorkerCommand{
		CommandId: commandID("end", sb.ID, now), TenantId: sb.Tenant, SandboxId: sb.ID,
		Command: &commandsv1.WorkerCommand_Teardown{Teardown: &commandsv1.Teardown{Reason: sb.Reason}},
	}, now)
}

func (s *Sweeper) expire(ctx context.Context, sb sandbox.Sandbox, now time.Time) error {
	c := &commandsv1.SandboxCommand{
		CommandId: commandID("expire", sb.ID, now), TenantId: sb.Tenant, SandboxId: sb.ID, Actor: Actor, Time: timestamppb.New(now),
		Command: &commandsv1.SandboxCommand_Destroy{Destroy: &commandsv1.DestroySandbox{Reason: sandbox.ReasonExpired}},
	}
	return s.publish(ctx, subject.SandboxCommand(sb.Tenant, sb.ID), c.GetCommandId(), c)
}

func (s *Sweeper) worker(ctx context.Context, to string, c *commandsv1.WorkerCommand, now time.Time) error {
	c.Actor, c.Time = Actor, timestamppb.New(now)
	return s.publish(ctx, subject.WorkerCommand(to, c.GetTenantId(), c.GetSandboxId()), c.GetCommandId(), c)
}

func (s *Sweeper) publish(ctx context.Context, to, id string, c proto.Message) error {
	data, err := proto.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode the command: %w", err)
	}
	m := nats.NewMsg(to)
	m.Data = data
	telemetry.Inject(ctx, m.Header)
	if _, err := s.js.PublishMsg(ctx, m, jetstream.WithMsgID(id)); err != nil {
		return fmt.Errorf("send the command: %w", err)
	}
	return nil
}

func commandID(what, id string, now time.Time) string {
	return ids.Derive("gc", what, id, now.UTC().Truncate(window).Format(time.RFC3339))
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
