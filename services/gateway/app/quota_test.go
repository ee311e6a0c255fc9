package app_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/quota"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
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
		map[string]any{"name": "idempotency_keys", "limit": n("200000"), "used": n("0"), "own": false},
	}, body["quotas"])

	res, err := w.GetQuota(w.as("bob"), &computev1.GetQuotaRequest{})
	require.NoError(t, err)
	require.Equal(t, "globex", res.GetTenantId())
	require.EqualValues(t, 20, res.GetQuotas()[0].GetLimit(), "the deployment's")
	require.False(t, res.GetQuotas()[0].GetOwn())
	require.EqualValues(t, 1, res.GetQuotas()[0].GetUsed())
	require.EqualValues(t, 5, res.GetQuotas()[2].GetLimit())
}

// What a tenant holds of the bucket that all tenants' idempotency keys are in is bounded, over all gateways and their restarts, and whatever
// becomes of its requests. Keys that it has used before go on to be answered.
func TestATenantCannotFillTheBucketOfIdempotencyKeys(t *testing.T) {
	const limit = 20
	bound := func(c *app.Config) { c.Quotas = tenant.Quotas{tenant.Keys: limit} }
	w := newWeb(t, bound)
	create := func(key, body string) answer { return w.send("POST", "/sandbox/create", body, "Idempotency-Key: "+key) }
	made := create("first", `{}`).is(t, 201)["sandbox_id"]
	for i := range 3 * limit {
		create(fmt.Sprintf("k%d", i), `{"image":"refused"}`).problem(t, 429, "quota")
	}
	e := create("new", `{}`).problem(t, 429, "quota")
	require.Equal(t, "idempotency_keys", e["quota"])
	w.send("POST", "/sandbox/"+made.(string)+"/execute", `{"command":["true"]}`, "Idempotency-Key: new").problem(t, 429, "quota")
	kv, err := w.JS.KeyValue(t.Context(), topology.BucketIdem)
	require.NoError(t, err)
	all, err := kv.Keys(t.Context())
	require.NoError(t, err)
	require.Len(t, all, limit+1, "its keys, and how many there are")
	stream, err := w.JS.Stream(t.Context(), subject.BucketStream(topology.BucketIdem))
	require.NoError(t, err)
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	t.Logf("%d bytes in %d entries", info.State.Bytes, info.State.Msgs)
	require.Less(t, info.State.Bytes/info.State.Msgs, uint64(400), "an entry is as small as its part of the bucket was reckoned")

	require.Equal(t, made, create("first", `{}`).is(t, 201)["sandbox_id"], "a repeat is no new key")
	create("first", `{"cpus":1}`).problem(t, 409, "idempotency_mismatch", "idempotency-key")
	w.send("POST", "/sandbox/create", `{}`).is(t, 201)
	bob := w.with("ApiKey " + secret("bob"))
	bob.send("POST", "/sandbox/create", `{}`, "Idempotency-Key: new").is(t, 201)
	another, _ := w.gateway(w.connect(), bound)
	w.base = "http://" + another.HTTP()
	require.Equal(t, "idempotency_keys", create("newer", `{}`).problem(t, 429, "quota")["quota"])
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
