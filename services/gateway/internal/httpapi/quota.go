package httpapi

import "net/http"

// quotas are those of a tenant.
type quotas struct {
	TenantID string     `json:"tenant_id"`
	Quotas   []quotaUse `json:"quotas"`
}

// quotaUse is one of them: limit is null where there is none, used where there is no sum.
type quotaUse struct {
	Name  string  `json:"name"`
	Limit *uint64 `json:"limit"`
	Used  *uint64 `json:"used"`
	// Own: it was set for this tenant; otherwise it is the deployment's.
	Own bool `json:"own"`
}

func (c *call) quota() error {
	id, all, err := c.use.Quota(c.ctx, c.p, "")
	if err != nil {
		return err
	}
	out := quotas{TenantID: id, Quotas: []quotaUse{}}
	for _, q := range all {
		out.Quotas = append(out.Quotas, quotaUse{Name: string(q.Name), Limit: q.Limit, Used: q.Used, Own: q.Own})
	}
	return c.answer(http.StatusOK, out)
}
