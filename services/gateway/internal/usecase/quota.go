package usecase

import (
	"context"

	"github.com/sandtrail/sandtrail/libs/quota"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// QuotaUse is one quota of a tenant: nil where there is no limit, or no sum of what is in use.
type QuotaUse struct {
	Name        scopes.Quota
	Limit, Used *uint64
	// Own: it was set for this tenant.
	Own bool
}

// Quota gives every quota of the caller's tenant, and its id. requested is the tenant that the request names, as for Owner.
func (u *UseCases) Quota(ctx context.Context, p principal.Principal, requested string) (string, []QuotaUse, error) {
	if err := p.Need(scopes.Inspect); err != nil {
		return "", nil, err
	}
	id, err := p.Owner(requested)
	if err != nil {
		return "", nil, err
	}
	own, all, err := u.quotas.Both(ctx, id)
	if err != nil {
		return "", nil, err
	}
	used, err := quota.Used(ctx, u.js, id)
	if err != nil {
		return "", nil, unreachable(err)
	}
	var out []QuotaUse
	for _, name := range scopes.AllQuotas() {
		q := QuotaUse{Name: name}
		if limit, bounded := all.Limit(name); bounded {
			q.Limit = &limit
		}
		if n, counted := used[name]; counted {
			q.Used = &n
		}
		_, q.Own = own[name]
		out = append(out, q)
	}
	return id, out, nil
}
