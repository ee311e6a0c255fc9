package grpcapi

import (
	"context"

	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

func (s *Server) ListUsage(ctx context.Context, req *computev1.ListUsageRequest) (*computev1.ListUsageResponse, error) {
	p, err := principal.From(ctx)
	if err != nil {
		return nil, err
	}
	reply, err := s.use.Usage(ctx, p, &commandsv1.UsageQuery{
		TenantId: named(ctx, p, req.GetTenantId()), SessionId: req.GetSessionId(), SandboxId: req.GetSandboxId(), ExecId: req.GetExecId(),
		Limit: uint32(pageLimit(req.GetPage())), Cursor: req.GetPage().GetCursor(),
	})
	if err != nil {
		return nil, err
	}
	return &computev1.ListUsageResponse{Rows: reply.GetRows(), Page: &commonv1.PageResponse{NextCursor: reply.GetNextCursor()}}, nil
}

// pageLimit is the limit that a request asks for: validation has seen to its bounds.
func pageLimit(p *commonv1.PageRequest) int {
	if p == nil || p.Limit == nil {
		return defaultPage
	}
	return int(p.GetLimit())
}
