package cli

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/client"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// Replay is `sandtrail replay`.
type Replay struct {
	Exec    ReplayExec    `cmd:"" help:"Write an exec's recorded output to stdout and stderr, byte for byte."`
	Sandbox ReplaySandbox `cmd:"" help:"Show a sandbox as its events tell it, now or at a sequence."`
}

// ReplayExec is `sandtrail replay exec`.
type ReplayExec struct {
	Server
	Exec     string `arg:"" optional:"" help:"The exec's id."`
	Last     bool   `help:"The last exec of --sandbox instead."`
	Sandbox  string `placeholder:"ID" help:"The exec's sandbox."`
	ExitCode bool   `help:"End with the recorded exit code instead of 0."`
}

// Run replays the output of an exec. One that runs is followed to its end.
func (r *ReplayExec) Run(e *Env) error {
	if (r.Exec == "") != r.Last {
		return usagef("give either the id of an exec, or --last with --sandbox")
	}
	if r.Last && r.Sandbox == "" {
		return usagef("--last: of which --sandbox?")
	}
	if r.Exec != "" && !ids.Valid(r.Exec) {
		return usagef("%q is not the id of an exec", r.Exec)
	}
	if r.Sandbox != "" {
		var err error
		if r.Sandbox, err = sandboxID(r.Sandbox); err != nil {
			return err
		}
	}
	ctx, api, done, err := r.connect(e, 0)
	if err != nil {
		return err
	}
	defer done()
	if r.Last {
		if r.Exec, err = r.last(ctx, api); err != nil {
			return ended(ctx, err)
		}
	}
	out := newOutput(e, r.json())
	end, err := api.Attach(ctx, r.Sandbox, r.Exec, client.Follower{Event: out.event})
	switch {
	case client.Lost(err) && !r.ExitCode:
		// Everything that is recorded was written; how the exec ended is not what was asked for.
		report(e.Stderr, err, r.json())
		return nil
	case err != nil:
		return ended(ctx, err)
	case !out.check(end):
		return exitError(ExitFailed)
	case r.ExitCode:
		return code(end)
	default:
		return nil
	}
}

// last reads the sandbox's events for the exec that was asked for last.
func (r *ReplayExec) last(ctx context.Context, api *client.Client) (string, error) {
	var id string
	seen := map[string]bool{}
	req := &computev1.WatchEventsRequest{TenantId: r.Tenant, SandboxId: r.Sandbox, NoFollow: true}
	err := api.Watch(ctx, req, func(ev *computev1.WatchEventsResponse) error {
		// The first event of an exec is its beginning; later ones of an older exec do not make it the last.
		if x := ev.GetExecId(); x != "" && !seen[x] {
			seen[x], id = true, x
		}
		return nil
	})
	if err == nil && id == "" {
		err = fault.Newf(fault.NotFound, fault.ReasonExecNotFound, "sandbox %s has run no exec", r.Sandbox)
	}
	return id, err
}

// ReplaySandbox is `sandtrail replay sandbox`.
type ReplaySandbox struct {
	Server
	Sandbox string `arg:"" help:"Its id."`
	At      uint64 `placeholder:"SEQ" help:"As it was behind this sequence of the log. Default: the last."`
}

// errReached ends the reading of events in good order.
var errReached = errors.New("the sequence is reached")

// Run folds the sandbox's events here, with the rules that the servers decide by.
func (r *ReplaySandbox) Run(e *Env) error {
	id, err := sandboxID(r.Sandbox)
	if err != nil {
		return err
	}
	ctx, api, done, err := r.connect(e, 0)
	if err != nil {
		return err
	}
	defer done()
	var h eventlog.History
	req := &computev1.WatchEventsRequest{TenantId: r.Tenant, SandboxId: id, NoFollow: true}
	err = api.Watch(ctx, req, func(ev *computev1.WatchEventsResponse) error {
		if r.At > 0 && ev.GetSequence() > r.At {
			return errReached
		}
		agg, err := subject.ParseEvent(ev.GetSubject())
		if err != nil || agg.Kind != subject.KindSandbox {
			return nil //nolint:nilerr // what is no sandbox event does not change a sandbox
		}
		h.Aggregate = agg
		h.Events = append(h.Events, recorded(ev))
		return nil
	})
	if err != nil && !errors.Is(err, errReached) {
		return err
	}
	if len(h.Events) == 0 {
		return fault.Newf(fault.NotFound, fault.ReasonSandboxNotFound, "sandbox %s has no event up to there", id)
	}
	b, err := sandbox.Fold(h)
	if err != nil {
		return err
	}
	state := folded(b, h.Events[len(h.Events)-1].Time)
	if r.json() {
		return render.One(e.Stdout, state)
	}
	return render.Fields(e.Stdout, fields(state))
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

// folded is a state in the shape in which a server describes a sandbox. Its uptime is the one at that moment.
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
