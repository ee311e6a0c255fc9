package grpcapi

import (
	"context"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

func (s *Server) GetQuota(ctx context.Context, req *computev1.GetQuotaRequest) (*computev1.GetQuotaResponse, error) {
	p, err := principal.From(ctx)
	if err != nil {
		return nil, err
	}
	id, all, err := s.use.Quota(ctx, p, named(ctx, p, req.GetTenantId()))
	if err != nil {
		return nil, err
	}
	res := &computev1.GetQuotaResponse{TenantId: id}
	for _, q := range all {
		res.Quotas = append(res.Quotas, &computev1.Quota{Name: string(q.Name), Limit: q.Limit, Used: q.Used, Own: q.Own})
	}
	return res, nil
}
