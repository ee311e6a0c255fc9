package usecase

import (
	"context"
	"math"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// Wish is what the caller of a named sandbox asks for beside what every create has.
type Wish struct {
	// Name as sandbox.ValidName has it.
	Name string
	// Region, Provider and InstanceType are recorded as they are said.
	Region, Provider, InstanceType string
	// InRegion, OnProvider, OnWorker and WorkerLabels narrow the placement; empty: anywhere.
	InRegion, OnProvider, OnWorker string
	WorkerLabels                   map[string]string
	// Egress is where its programs may connect to; nil: nowhere.
	Egress *eventsv1.Egress
}

// CreateNamed is Create for a sandbox with a name. One that another sandbox of the tenant has is fault.Conflict with ReasonNameTaken.
func (u *UseCases) CreateNamed(ctx context.Context, p principal.Principal, key string, req *computev1.CreateSandboxRequest, w Wish) (sandbox.Sandbox, error) {
	if err := p.Need(scopes.Create); err != nil {
		return sandbox.Sandbox{}, err
	}
	tenant, err := p.Owner(req.GetTenantId())
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	create, err := u.createCommand(req)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	create.Name, create.AskedRegion, create.Provider, create.InstanceType = w.Name, w.Region, w.Provider, w.InstanceType
	create.Region, create.OnProvider, create.Worker, create.WorkerLabels = w.InRegion, w.OnProvider, w.OnWorker, w.WorkerLabels
	create.Egress = w.Egress
	s, err := u.ordered(ctx, p, tenant, "CreateNamedSandbox", key, proto.CloneOf(create), create, req.GetEnvVars())
	if err == nil && s.Name != w.Name {
		err = fault.New(fault.Unavailable, fault.ReasonConflict, "the scheduler is older than names; the sandbox "+s.ID+" was made without one").
			WithRetry(time.Minute)
	}
	return s, err
}

// Named finds the id of the sandbox that has a name, or of which the name is the id. The name wins. Nobody has the name of a sandbox
// that was destroyed.
func (u *UseCases) Named(ctx context.Context, p principal.Principal, name string) (string, error) {
	if p.Tenant == "" || !sandbox.ValidName(name) {
		return "", unnamed(name)
	}
	h, err := eventlog.Last(ctx, u.log, subject.Name(p.Tenant, sandbox.NameID(name)))
	if err != nil {
		return "", err
	}
	n, err := sandbox.FoldName(h)
	switch {
	case err != nil:
		return "", err
	case n.Sandbox != "":
		return n.Sandbox, nil
	case ids.Valid(name):
		return name, nil
	}
	return "", unnamed(name)
}

func unnamed(name string) error {
	return fault.Newf(fault.NotFound, fault.ReasonSandboxNotFound, "there is no sandbox %.64q", name)
}

// AwaitReady returns a sandbox once an exec works in it. fault.DeadlineExceeded after wait, or Limits.StartWait where that is shorter.
func (u *UseCases) AwaitReady(ctx context.Context, s sandbox.Sandbox, wait time.Duration) (sandbox.Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if err := over(s); err != nil {
		return s, err
	}
	return u.waitReady(ctx, s)
}

// History is a sandbox's history as the log has it now; not_found without one.
func (u *UseCases) History(ctx context.Context, p principal.Principal, id string) (eventlog.History, error) {
	if err := p.Need(scopes.Inspect); err != nil {
		return eventlog.History{}, err
	}
	agg, err := u.aggregate(ctx, p, id)
	if err != nil {
		return eventlog.History{}, err
	}
	h, err := u.history(ctx, agg)
	if err == nil && len(h.Events) == 0 {
		err = notFound(id)
	}
	return h, err
}

// Doings gives each event of the execs of a sandbox, in order. It costs one pass over them.
func (u *UseCases) Doings(ctx context.Context, p principal.Principal, s sandbox.Sandbox, each func(directget.Message) error) error {
	if err := p.Need(scopes.Inspect); err != nil {
		return err
	}
	if err := directget.Each(ctx, u.js, topology.StreamEvents, subject.ExecsOf(s.Tenant, s.ID), 1, each); err != nil {
		return unreachable(err)
	}
	return nil
}

// LastDoing is the last event of any exec of a sandbox, nil without one.
func (u *UseCases) LastDoing(ctx context.Context, s sandbox.Sandbox) (*directget.Message, error) {
	m, err := directget.LeaderLast(ctx, u.js, topology.StreamEvents, subject.ExecsOf(s.Tenant, s.ID))
	if err != nil {
		return nil, unreachable(err)
	}
	return m, nil
}

// Workers are those that were heard of within the last minute, with the time of their heartbeats.
func (u *UseCases) Workers(ctx context.Context, p principal.Principal) ([]*commandsv1.WorkerStatus, error) {
	if err := p.Need(scopes.Inspect); err != nil {
		return nil, err
	}
	return u.heartbeats(ctx)
}

// ForgetWorker takes a worker from the list whose last heartbeat says this time. A newer one stays.
func (u *UseCases) ForgetWorker(ctx context.Context, p principal.Principal, name string, heard time.Time) error {
	if err := p.Need(scopes.Admin); err != nil {
		return err
	}
	at := subject.BucketKey(topology.BucketWorker, name)
	m, err := directget.LeaderLast(ctx, u.js, subject.BucketStream(topology.BucketWorker), at)
	if err != nil {
		return unreachable(err)
	}
	w := &commandsv1.WorkerStatus{}
	if m == nil || proto.Unmarshal(m.Data, w) != nil || w.GetTime().AsTime().After(heard) {
		return fault.Newf(fault.Conflict, fault.ReasonConflict, "worker %s was heard of just now; look again", name)
	}
	s, err := u.js.Stream(ctx, subject.BucketStream(topology.BucketWorker))
	if err == nil {
		err = s.Purge(ctx, jetstream.WithPurgeSubject(at), jetstream.WithPurgeSequence(m.Seq+1))
	}
	if err != nil {
		return unreachable(err)
	}
	return nil
}

// Everything lists the tenant's sandboxes that keep takes, newest first, at most limit.
func (u *UseCases) Everything(ctx context.Context, p principal.Principal, limit int, keep func(*commandsv1.SandboxView) bool) ([]*commandsv1.SandboxView, error) {
	page, _, err := u.List(ctx, p, ListFilter{Limit: min(limit, math.MaxInt32), Keep: keep})
	return page, err
}

// Located is a sandbox for who may do something in it, as it was requested at least.
func (u *UseCases) Located(ctx context.Context, p principal.Principal, id string) (sandbox.Sandbox, error) {
	if err := p.Need(scopes.Files | scopes.Execute | scopes.Inspect); err != nil {
		return sandbox.Sandbox{}, err
	}
	return u.locateForExec(ctx, p, id)
}
