package grpcapi

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

const (
	// defaultPage is how many entries a list gives unless asked otherwise.
	defaultPage = 50
	// maxOrg bounds an org id that comes in the metadata, like the rule of the field.
	maxOrg = 255
)

// named is the tenant that a request names, in its field or, in development mode, in the metadata. The credential outranks both.
func named(ctx context.Context, p principal.Principal, field string) string {
	if field == "" && p.Development() {
		return first(ctx, headerTenant)
	}
	return field
}

func (s *Server) CreateSandbox(ctx context.Context, req *computev1.CreateSandboxRequest) (*computev1.CreateSandboxResponse, error) {
	p, err := principal.From(ctx)
	if err != nil {
		return nil, err
	}
	req.TenantId = named(ctx, p, req.GetTenantId())
	if req.GetOrgId() == "" {
		if req.OrgId = first(ctx, headerOrg); len(req.GetOrgId()) > maxOrg {
			return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request is not valid").
				WithFields(map[string]string{headerOrg: "must be at most 255 bytes"})
		}
	}
	b, err := s.use.Create(ctx, p, first(ctx, headerIdempotency), req)
	if err != nil {
		return nil, err
	}
	// The answer to a create is the create's, also when it is repeated later: it was accepted and starts.
	return &computev1.CreateSandboxResponse{
		SandboxId: b.ID, Status: computev1.SandboxStatus_SANDBOX_STATUS_STARTING, CreatedAt: timestamp(b.CreatedAt),
	}, nil
}

func (s *Server) DestroySandbox(ctx context.Context, req *computev1.DestroySandboxRequest) (*computev1.DestroySandboxResponse, error) {
	p, err := principal.From(ctx)
	if err != nil {
		return nil, err
	}
	b, err := s.use.Destroy(ctx, p, first(ctx, headerIdempotency), req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	return &computev1.DestroySandboxResponse{
		SandboxId: b.ID, TotalUptime: durationpb.New(b.Uptime), TotalUsage: usage(b.Usage), WorkspaceDeleteAfter: timestamp(b.DeleteAfter),
	}, nil
}

// turnWait bounds how long a stop or a start is waited for.
const turnWait = 5 * time.Minute

func (s *Server) StopSandbox(ctx context.Context, req *computev1.StopSandboxRequest) (*computev1.StopSandboxResponse, error) {
	p, err := principal.From(ctx)
	if err != nil {
		return nil, err
	}
	b, err := s.use.Halt(ctx, p, first(ctx, headerIdempotency), req.GetSandboxId(), turnWait)
	if err != nil {
		return nil, err
	}
	if b.State == sandbox.Stopping {
		return nil, fault.New(fault.DeadlineExceeded, fault.ReasonTimeout, "the sandbox is still stopping; ask again later").WithRetry(5 * time.Second)
	}
	return &computev1.StopSandboxResponse{SandboxId: b.ID, TotalUptime: durationpb.New(b.Uptime), TotalUsage: usage(b.Usage)}, nil
}

func (s *Server) StartSandbox(ctx context.Context, req *computev1.StartSandboxRequest) (*computev1.StartSandboxResponse, error) {
	p, err := principal.From(ctx)
	if err != nil {
		return nil, err
	}
	b, err := s.use.Start(ctx, p, first(ctx, headerIdempotency), req.GetSandboxId(), turnWait)
	if err != nil {
		return nil, err
	}
	return &computev1.StartSandboxResponse{SandboxId: b.ID}, nil
}

func (s *Server) ExtendSandbox(ctx context.Context, req *computev1.ExtendSandboxRequest) (*computev1.ExtendSandboxResponse, error) {
	p, err := principal.From(ctx)
	if err != nil {
		return nil, err
	}
	until, err := s.use.Extend(ctx, p, first(ctx, headerIdempotency), req.GetSandboxId(), req.GetTimeout().AsDuration())
	if err != nil {
		return nil, err
	}
	return &computev1.ExtendSandboxResponse{SandboxId: req.GetSandboxId(), ExpiresAt: timestamp(until)}, nil
}

func (s *Server) DescribeSandbox(ctx context.Context, req *computev1.DescribeSandboxRequest) (*computev1.DescribeSandboxResponse, error) {
	p, err := principal.From(ctx)
	if err != nil {
		return nil, err
	}
	b, err := s.use.Describe(ctx, p, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	return described(b), nil
}

func (s *Server) ListSandboxes(ctx context.Context, req *computev1.ListSandboxesRequest) (*computev1.ListSandboxesResponse, error) {
	p, err := principal.From(ctx)
	if err != nil {
		return nil, err
	}
	views, next, err := s.use.List(ctx, p, usecase.ListFilter{
		Tenant: named(ctx, p, req.GetTenantId()), Session: req.GetSessionId(), Statuses: req.GetStatuses(), Cursor: req.GetPage().GetCursor(), Limit: pageLimit(req.GetPage()),
	})
	if err != nil {
		return nil, err
	}
	res := &computev1.ListSandboxesResponse{Page: &commonv1.PageResponse{NextCursor: next}}
	for _, v := range views {
		res.Sandboxes = append(res.Sandboxes, described(sandbox.FromView(v)))
	}
	return res, nil
}

func described(b sandbox.Sandbox) *computev1.DescribeSandboxResponse {
	d := &computev1.SandboxDetail{
		TenantId: b.Tenant, SessionId: b.SessionID, Image: b.Image, State: b.State, Reason: b.Message, ReasonCode: b.Reason,
		Worker: b.Worker, Hostname: b.Hostname, Labels: b.Labels, EnvKeys: b.EnvKeys, ImageDigest: b.ImageDigest, Sequence: b.Seq,
		ReadyAt: timestamp(b.ReadyAt), EndedAt: timestamp(b.EndedAt), ExpiresAt: timestamp(b.ExpiresAt),
		WorkspaceDeleteAfter: timestamp(b.DeleteAfter),
	}
	if l := b.Limits; l != nil {
		d.Limits = &computev1.ResourceLimits{CpuMillis: l.GetCpuMillis(), MemoryBytes: l.GetMemoryBytes(), Pids: l.GetPids()}
		if l.GetMaxRuntimeMs() > 0 {
			d.Limits.MaxRuntime = durationpb.New(time.Duration(l.GetMaxRuntimeMs()) * time.Millisecond)
		}
		if idle := b.IdleTimeout(); idle > 0 {
			d.Limits.IdleTimeout = durationpb.New(idle)
		}
	}
	if w := b.Workspace; w != nil {
		d.Workspace = &computev1.WorkspaceSpec{StorageClass: w.GetStorageClass(), Size: bytesQuantity(w.GetSizeBytes()), MountPath: w.GetMountPath()}
	}
	return &computev1.DescribeSandboxResponse{
		SandboxId: b.ID, Status: b.Status(), CreatedAt: timestamp(b.CreatedAt), CurrentUptime: durationpb.New(b.UptimeAt(time.Now())),
		CurrentUsage: usage(b.Usage), Detail: d,
	}
}

// usage is never nil, so that answers always have the field.
func usage(m *commonv1.UsageMetrics) *commonv1.UsageMetrics {
	if m == nil {
		return &commonv1.UsageMetrics{}
	}
	return m
}

// timestamp leaves a time that is not known out instead of sending year 1.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
