package quota_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/quota"
	"github.com/sandtrail/sandtrail/libs/tenant"
)

// However many gateways count, and however often they start again, a tenant never has more idempotency keys than it may, until the first are
// forgotten.
func TestKeysOfATenantStayBelowItsLimit(t *testing.T) {
	f := natstest.Start(t)
	const limit = 300
	var passed atomic.Int64
	begin := time.Now()
	later := func() time.Time { return begin.Add(time.Duration(passed.Load())) }
	gateway := func() *quota.Keys {
		return quota.NewKeys(f.JS, quota.NewBook(jslog.New(f.JS), tenant.Quotas{tenant.Keys: limit}), later)
	}
	var taken atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		k := gateway()
		for range 8 {
			wg.Go(func() {
				for range 40 {
					err := patient(t, func() error { return k.Take(t.Context(), acme) })
					switch {
					case err == nil:
						taken.Add(1)
					case !fault.Is(err, fault.ReasonQuota):
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	require.EqualValues(t, limit, taken.Load())
	used, err := quota.Used(t.Context(), f.JS, acme)
	require.NoError(t, err)
	require.EqualValues(t, limit, used[tenant.Keys])

	k := gateway()
	refused := fault.From(k.Take(t.Context(), acme))
	require.Equal(t, string(tenant.Keys), refused.Quota)
	require.Greater(t, refused.RetryAfter, 24*time.Hour-time.Minute)
	require.LessOrEqual(t, refused.RetryAfter, 25*time.Hour)
	require.NoError(t, k.Take(t.Context(), "globex"), "another tenant has its own")

	passed.Store(int64(25 * time.Hour))
	require.NoError(t, k.Take(t.Context(), acme), "those of yesterday are forgotten")
	require.NoError(t, gateway().Take(t.Context(), acme))
}

// A key that turns out to be known costs nothing, and one that may use any number of them is not counted.
func TestAKeyThatIsKnownCostsNothing(t *testing.T) {
	f := natstest.Start(t)
	book := quota.NewBook(jslog.New(f.JS), tenant.Quotas{tenant.Keys: 1})
	k := quota.NewKeys(f.JS, book, time.Now)
	for range 100 {
		require.NoError(t, k.Take(t.Context(), acme))
		k.Give(acme)
	}
	require.NoError(t, k.Take(t.Context(), acme))
	require.True(t, fault.Is(k.Take(t.Context(), acme), fault.ReasonQuota))

	free := quota.NewKeys(f.JS, quota.NewBook(jslog.New(f.JS), tenant.Quotas{tenant.Keys: tenant.Unbounded}), time.Now)
	for range 1000 {
		require.NoError(t, free.Take(t.Context(), acme))
	}
}
