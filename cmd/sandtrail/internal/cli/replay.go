package cli

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/client"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// Replay is `sandtrail replay`.
type Replay struct {
	Exec    ReplayExec    `cmd:"" help:"Write an exec's recorded output, at once or at its own pace; or show the exec as it was."`
	Sandbox ReplaySandbox `cmd:"" help:"Show a sandbox as its events tell it, now or at a moment, and what has changed since."`
	Tenant  ReplayTenant  `cmd:"" help:"Show a tenant as its events tell it, now or at a moment, and what has changed since."`
	Run     ReplayRun     `cmd:"" help:"Read the log again, into nothing, a file of JSON lines or ClickHouse."`
}

// ReplaySandbox is `sandtrail replay sandbox`.
type ReplaySandbox struct {
	Server
	Past
	Sandbox string `arg:"" help:"Its id."`
}

// Run folds the sandbox's events here, with the rules that the servers decide by.
func (r *ReplaySandbox) Run(e *Env) error {
	id, err := sandboxID(r.Sandbox)
	if err != nil {
		return err
	}
	at, err := r.moment()
	if err != nil {
		return err
	}
	h := &history{at: at}
	req := &computev1.WatchEventsRequest{TenantId: r.Tenant, SandboxId: id, NoFollow: true}
	if err := r.read(e, req, func(agg subject.Aggregate, ev envelope.Recorded) error {
		if agg.Kind == subject.KindSandbox {
			h.add(agg, ev)
		}
		return nil
	}); err != nil {
		return err
	}
	if len(h.then.Events) == 0 {
		return fault.Newf(fault.NotFound, fault.ReasonSandboxNotFound, "sandbox %s has no event up to there", id)
	}
	return h.show(e, r.json(), func(h eventlog.History) (picture, error) {
		b, err := sandbox.Fold(h)
		if err != nil {
			return picture{}, err
		}
		state := folded(b, h.Events[len(h.Events)-1].Time)
		doc, err := render.Proto(state)
		return picture{doc, fields(state)}, err
	})
}

// read gives the events that a request asks for, with their aggregates.
func (s *Server) read(e *Env, req *computev1.WatchEventsRequest, each func(subject.Aggregate, envelope.Recorded) error) error {
	ctx, api, done, err := s.connect(e, 0)
	if err != nil {
		return err
	}
	defer done()
	return ended(ctx, watch(ctx, api, req, each))
}

func watch(
	ctx context.Context, api *client.Client, req *computev1.WatchEventsRequest, each func(subject.Aggregate, envelope.Recorded) error,
) error {
	return api.Watch(ctx, req, func(ev *computev1.WatchEventsResponse) error {
		agg, err := subject.ParseEvent(ev.GetSubject())
		if err != nil {
			return nil //nolint:nilerr // what is no event of a kind that is known changes nothing that is
		}
		return each(agg, recorded(ev))
	})
}

func recorded(ev *computev1.WatchEventsResponse) envelope.Recorded {
	return envelope.Recorded{
		Meta: envelope.Meta{
			ID: ev.GetId(), Type: ev.GetType(), Tenant: ev.GetTenantId(), Actor: ev.GetActor(), Cause: ev.GetCause(),
			Correlation: ev.GetCorrelationId(), Time: ev.GetTime().AsTime(),
		},
		Subject: ev.GetSubject(), Seq: ev.GetSequence(), Digest: ev.GetDigest(), Data: ev.GetBody(), Body: render.EventBody(ev),
	}
}

// folded is a state in the shape in which a server describes a sandbox. Its uptime is the one at that point.
func folded(b sandbox.Sandbox, at time.Time) *computev1.DescribeSandboxResponse {
	d := &computev1.SandboxDetail{
		TenantId: b.Tenant, SessionId: b.SessionID, Image: b.Image, State: b.State, Reason: b.Message, ReasonCode: b.Reason,
		Worker: b.Worker, Hostname: b.Hostname, Labels: b.Labels, EnvKeys: b.EnvKeys, ImageDigest: b.ImageDigest, Sequence: b.Seq,
		ReadyAt: moment(b.ReadyAt), EndedAt: moment(b.EndedAt), ExpiresAt: moment(b.ExpiresAt), WorkspaceDeleteAfter: moment(b.DeleteAfter),
	}
	if l := b.Limits; l != nil {
		d.Limits = &computev1.ResourceLimits{CpuMillis: l.GetCpuMillis(), MemoryBytes: l.GetMemoryBytes(), Pids: l.GetPids()}
		if ms := l.GetMaxRuntimeMs(); ms > 0 {
			d.Limits.MaxRuntime = durationpb.New(time.Duration(ms) * time.Millisecond) //nolint:gosec // bounded by the gateway
		}
		if idle := b.IdleTimeout(); idle > 0 {
			d.Limits.IdleTimeout = durationpb.New(idle)
		}
	}
	if w := b.Workspace; w != nil {
		d.Workspace = &computev1.WorkspaceSpec{StorageClass: w.GetStorageClass(), Size: quantity(w.GetSizeBytes()), MountPath: w.GetMountPath()}
	}
	return &computev1.DescribeSandboxResponse{
		SandboxId: b.ID, Status: b.Status(), CreatedAt: moment(b.CreatedAt), CurrentUptime: durationpb.New(b.UptimeAt(at)),
		CurrentUsage: b.Usage, Detail: d,
	}
}

func moment(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
