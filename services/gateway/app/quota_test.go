package app_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/quota"
	"github.com/sandtrail/sandtrail/libs/tenant"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/app"
)

func TestQuotasAreShownToTheirTenant(t *testing.T) {
	w := newWeb(t, func(c *app.Config) { c.Quotas = tenant.Quotas{tenant.Sandboxes: 20, tenant.Execs: 5} })
	ledgers, err := quota.NewLedgers(t.Context(), w.JS, now)
	require.NoError(t, err)
	size := quota.Size{CPUMillis: 500, MemoryBytes: 1 << 30, WorkspaceBytes: 5 << 30}
	require.NoError(t, ledgers.Take(t.Context(), "acme", ids.New(), size, nil))
	require.NoError(t, ledgers.Take(t.Context(), "globex", ids.New(), quota.Size{}, nil))
	administer(w.world, "acme", tenant.CreateTenant{})
	administer(w.world, "acme", tenant.SetQuota{Set: tenant.Quotas{tenant.Sandboxes: 3, tenant.Execs: tenant.Unbounded}})

	body := w.send("GET", "/quota", "").is(t, 200)
	require.Equal(t, "acme", body["tenant_id"])
	n := func(s string) json.Number { return json.Number(s) }
	require.Equal(t, []any{
		map[string]any{"name": "sandboxes", "limit": n("3"), "used": n("1"), "own": true},
		map[string]any{"name": "creates_per_minute", "limit": nil, "used": n("1"), "own": false},
		map[string]any{"name": "execs", "limit": nil, "used": n("0"), "own": true},
		map[string]any{"name": "cpu_millis", "limit": nil, "used": n("500"), "own": false},
		map[string]any{"name": "memory_bytes", "limit": nil, "used": n("1073741824"), "own": false},
		map[string]any{"name": "workspace_bytes", "limit": nil, "used": n("5368709120"), "own": false},
		map[string]any{"name": "output_bytes", "limit": nil, "used": nil, "own": false},
	}, body["quotas"])

	res, err := w.GetQuota(w.as("bob"), &computev1.GetQuotaRequest{})
	require.NoError(t, err)
	require.Equal(t, "globex", res.GetTenantId())
	require.EqualValues(t, 20, res.GetQuotas()[0].GetLimit(), "the deployment's")
	require.False(t, res.GetQuotas()[0].GetOwn())
	require.EqualValues(t, 1, res.GetQuotas()[0].GetUsed())
	require.EqualValues(t, 5, res.GetQuotas()[2].GetLimit())
}

// Whoever meets a quota learns its name as a program does: over gRPC too.
func TestAQuotaIsNamedInTheDetails(t *testing.T) {
	w := newWorld(t, nil)
	_, err := w.CreateSandbox(t.Context(), &computev1.CreateSandboxRequest{TenantId: "acme", Image: "refused"})
	require.Equal(t, "sandboxes", detail(t, err).GetQuota())
	for _, d := range status.Convert(err).Details() {
		if f, ok := d.(*errdetails.QuotaFailure); ok {
			require.Equal(t, "sandboxes", f.GetViolations()[0].GetQuotaId())
			return
		}
	}
	require.Fail(t, "no QuotaFailure", "%v", err)
}
