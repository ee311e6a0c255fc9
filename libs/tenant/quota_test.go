package tenant_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/tenant"
)

func TestQuotasAreTheTenantsOwnWhereItHasOne(t *testing.T) {
	s, _ := created(t)
	deployment := tenant.Quotas{tenant.Sandboxes: 20, tenant.Execs: 10, tenant.CPU: 0}
	require.Equal(t, deployment, s.Quotas.Over(deployment))

	s, bodies := do(t, s, day, tenant.SetQuota{Set: tenant.Quotas{tenant.Sandboxes: 5, tenant.CPU: tenant.Unbounded}, Note: "trial"})
	require.Len(t, bodies, 1)
	held := s.Quotas.Over(deployment)
	n, bounded := held.Limit(tenant.Sandboxes)
	require.True(t, bounded)
	require.EqualValues(t, 5, n)
	_, bounded = held.Limit(tenant.CPU)
	require.False(t, bounded, "unlimited is more than the deployment's none at all")
	n, bounded = held.Limit(tenant.Execs)
	require.True(t, bounded)
	require.EqualValues(t, 10, n)
	_, bounded = held.Limit(tenant.Memory)
	require.False(t, bounded)

	_, again := do(t, s, day, tenant.SetQuota{Set: tenant.Quotas{tenant.Sandboxes: 5}})
	require.Empty(t, again, "a command that was carried out already decides nothing")
	s, _ = do(t, s, day, tenant.SetQuota{Set: tenant.Quotas{tenant.Sandboxes: 0}, Unset: []tenant.Quota{tenant.CPU}})
	require.Equal(t, tenant.Quotas{tenant.Sandboxes: 0}, s.Quotas, "none at all is a limit too")
}

func TestRefusedQuotas(t *testing.T) {
	s, _ := created(t)
	for name, c := range map[string]struct {
		state   tenant.Tenant
		command tenant.SetQuota
		reason  fault.Reason
	}{
		"no tenant":     {tenant.Tenant{ID: "x"}, tenant.SetQuota{Set: tenant.Quotas{tenant.Execs: 1}}, fault.ReasonTenantNotFound},
		"unknown":       {s, tenant.SetQuota{Set: tenant.Quotas{"boxes": 1}}, fault.ReasonValidation},
		"unset unknown": {s, tenant.SetQuota{Unset: []tenant.Quota{"boxes"}}, fault.ReasonValidation},
		"long note":     {s, tenant.SetQuota{Set: tenant.Quotas{tenant.Execs: 1}, Note: strings.Repeat("x", tenant.MaxNote+1)}, fault.ReasonValidation},
	} {
		bodies, err := tenant.Decide(c.state, c.command)
		require.True(t, fault.Is(err, c.reason), "%s: %v", name, err)
		require.Empty(t, bodies)
	}
	require.NoError(t, tenant.Quotas{tenant.Output: 1}.Validate())
	require.Error(t, tenant.Quotas{"boxes": 1}.Validate())
}
