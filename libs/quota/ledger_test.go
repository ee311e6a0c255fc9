package quota_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/quota"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
)

const acme = "acme"

// patient calls again where the server only says that it cannot tell now.
func patient(t *testing.T, call func() error) error {
	t.Helper()
	for {
		err := call()
		if fault.CodeOf(err) != fault.Unavailable {
			return err
		}
	}
}

// audit follows every value that an entry ever had and checks it.
func audit[T any](t *testing.T, f *natstest.Fixture, key string, check func(T)) (stop func()) {
	t.Helper()
	kv, err := f.JS.KeyValue(t.Context(), topology.BucketQuota)
	require.NoError(t, err)
	w, err := kv.Watch(t.Context(), key)
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.Updates() {
			if e == nil {
				continue
			}
			var v T
			if err := json.Unmarshal(e.Value(), &v); err != nil {
				panic(err)
			}
			check(v)
		}
	}()
	return func() {
		require.NoError(t, w.Stop())
		<-done
	}
}

// Sandboxes come and go on four schedulers at once; no limit is ever passed, at any moment that the server has stored, and when all are
// gone every place is free again.
func TestQuotasAreExactOverManySchedulers(t *testing.T) {
	f := natstest.Start(t)
	limits := tenant.Quotas{tenant.Sandboxes: 12, tenant.CPU: 9_000, tenant.Memory: 20, tenant.Workspace: 100}
	var over atomic.Int64
	stop := audit(t, f, quota.SandboxesKey(acme), func(l quota.Ledger) {
		for name, used := range l.Used(time.Now()) {
			if limit, bounded := limits.Limit(name); bounded && used > limit {
				over.Add(1)
			}
		}
	})
	// Few places are left, so that two who come together meet the limit, also where a machine lets few run at a time.
	held := make([]string, 11)
	for i := range held {
		held[i] = ids.New()
	}
	all, err := quota.NewLedgers(t.Context(), f.JS, time.Now)
	require.NoError(t, err)
	for _, id := range held {
		require.NoError(t, all.Take(t.Context(), acme, id, quota.Size{}, limits))
	}
	var taken, refused atomic.Int64
	var wg sync.WaitGroup
	for n := range 4 {
		ledgers, err := quota.NewLedgers(t.Context(), f.JS, time.Now)
		require.NoError(t, err)
		for m := range 4 {
			random := rand.New(rand.NewPCG(uint64(n), uint64(m)))
			wg.Go(func() {
				for range 15 {
					id := ids.New()
					size := quota.Size{CPUMillis: 250 * random.Uint64N(8), MemoryBytes: random.Uint64N(4), WorkspaceBytes: random.Uint64N(20)}
					err := patient(t, func() error { return ledgers.Take(t.Context(), acme, id, size, limits) })
					if err != nil {
						if !fault.Is(err, fault.ReasonQuota) || fault.From(err).Quota == "" || fault.From(err).RetryAfter == 0 {
							panic(fmt.Sprint("unexpected: ", err))
						}
						refused.Add(1)
						continue
					}
					taken.Add(1)
					if err := patient(t, func() error { return ledgers.Free(t.Context(), acme, id) }); err != nil {
						panic(err)
					}
				}
			})
		}
	}
	wg.Wait()
	stop()
	require.Zero(t, over.Load(), "a limit was passed")
	require.NotZero(t, taken.Load())
	require.NotZero(t, refused.Load(), "nothing ever met a limit: this shows nothing")
	for _, id := range held {
		require.NoError(t, patient(t, func() error { return all.Free(t.Context(), acme, id) }))
	}
	for range 12 {
		id := ids.New()
		require.NoError(t, patient(t, func() error { return all.Take(t.Context(), acme, id, quota.Size{}, limits) }), "every place is free again")
	}
	id := ids.New()
	err = patient(t, func() error { return all.Take(t.Context(), acme, id, quota.Size{}, limits) })
	require.True(t, fault.Is(err, fault.ReasonQuota), "%v", err)
}

func TestASandboxIsCountedOnce(t *testing.T) {
	f := natstest.Start(t)
	l, err := quota.NewLedgers(t.Context(), f.JS, time.Now)
	require.NoError(t, err)
	limits := tenant.Quotas{tenant.Sandboxes: 1}
	id := ids.New()
	for range 3 {
		require.NoError(t, l.Take(t.Context(), acme, id, quota.Size{CPUMillis: 5}, limits))
	}
	used, err := quota.Used(t.Context(), f.JS, acme)
	require.NoError(t, err)
	require.Equal(t, tenant.Quotas{tenant.Sandboxes: 1, tenant.Creates: 1, tenant.CPU: 5, tenant.Memory: 0, tenant.Workspace: 0, tenant.Execs: 0, tenant.Keys: 0}, used)
	err = l.Take(t.Context(), acme, ids.New(), quota.Size{}, limits)
	require.Contains(t, fault.From(err).Message, id, "it says who holds the place")
	require.NoError(t, l.Take(t.Context(), "other", ids.New(), quota.Size{}, limits), "another tenant's is another count")
	require.NoError(t, l.Restore(t.Context(), acme, ids.New(), quota.Size{}), "what exists is counted over the limit too")
	held, err := l.Holders(t.Context(), acme)
	require.NoError(t, err)
	require.Len(t, held, 2)
	tenants, err := l.Tenants(t.Context())
	require.NoError(t, err)
	require.ElementsMatch(t, []string{acme, "other"}, tenants)
}

// In any 60 seconds no more are accepted than the limit says, also when those before were ended at once.
func TestAStoppedSandboxIsCountedWithItsDiskAlone(t *testing.T) {
	f := natstest.Start(t)
	l, err := quota.NewLedgers(t.Context(), f.JS, time.Now)
	require.NoError(t, err)
	limits := tenant.Quotas{tenant.CPU: 1000, tenant.Memory: 10, tenant.Workspace: 100, tenant.Creates: 3}
	size := quota.Size{CPUMillis: 1000, MemoryBytes: 10, WorkspaceBytes: 50}
	first, second := ids.New(), ids.New()
	used := func() tenant.Quotas {
		u, err := quota.Used(t.Context(), f.JS, acme)
		require.NoError(t, err)
		return u
	}
	require.NoError(t, l.Take(t.Context(), acme, first, size, limits))
	for range 2 {
		require.NoError(t, l.Rest(t.Context(), acme, first))
		require.Equal(t, []uint64{1, 0, 0, 50}, []uint64{used()[tenant.Sandboxes], used()[tenant.CPU], used()[tenant.Memory], used()[tenant.Workspace]})
	}
	require.NoError(t, l.Take(t.Context(), acme, second, size, limits))
	err = l.Wake(t.Context(), acme, first, size, limits)
	require.True(t, fault.Is(err, fault.ReasonQuota), "%v", err)
	require.Equal(t, string(tenant.CPU), fault.From(err).Quota)
	require.Equal(t, uint64(100), used()[tenant.Workspace], "a refused start takes nothing")
	require.NoError(t, l.Free(t.Context(), acme, second))
	for range 2 {
		require.NoError(t, l.Wake(t.Context(), acme, first, size, limits))
		require.Equal(t, []uint64{1, 1000, 10, 50, 2}, []uint64{used()[tenant.Sandboxes], used()[tenant.CPU], used()[tenant.Memory], used()[tenant.Workspace], used()[tenant.Creates]}, "a start is no create")
	}
	held, err := l.Holders(t.Context(), acme)
	require.NoError(t, err)
	was := held[first]
	was.Since--
	require.NoError(t, l.RestOf(t.Context(), acme, first, was))
	require.Equal(t, uint64(1000), used()[tenant.CPU], "it was counted anew since")
	require.NoError(t, l.RestOf(t.Context(), acme, first, held[first]))
	require.Zero(t, used()[tenant.CPU])
	require.NoError(t, l.Rest(t.Context(), acme, ids.New()), "nothing is counted of it")
}

func TestCreatesAMinute(t *testing.T) {
	f := natstest.Start(t)
	now := time.Unix(1_800_000_000, 0)
	l, err := quota.NewLedgers(t.Context(), f.JS, func() time.Time { return now })
	require.NoError(t, err)
	limits := tenant.Quotas{tenant.Creates: 7}
	random := rand.New(rand.NewPCG(1, 2))
	var accepted []time.Time
	for range 300 {
		now = now.Add(time.Duration(random.Int64N(int64(15 * time.Second))))
		id := ids.New()
		err := l.Take(t.Context(), acme, id, quota.Size{}, limits)
		within := len(slices.DeleteFunc(slices.Clone(accepted), func(at time.Time) bool { return now.Sub(at) >= time.Minute }))
		if err == nil {
			require.Less(t, within, 7)
			accepted = append(accepted, now)
			require.NoError(t, l.Free(t.Context(), acme, id))
			continue
		}
		require.Equal(t, string(tenant.Creates), fault.From(err).Quota)
		after := fault.From(err).RetryAfter
		require.Positive(t, after)
		require.LessOrEqual(t, after, 61*time.Second)
		now = now.Add(after)
		require.NoError(t, l.Take(t.Context(), acme, id, quota.Size{}, limits), "whoever waits as long as it was told gets in")
		accepted = append(accepted, now)
		require.NoError(t, l.Free(t.Context(), acme, id))
	}
	require.Greater(t, len(accepted), 50)

	// What never came to be is no create.
	now = now.Add(2 * time.Minute)
	for range 20 {
		id := ids.New()
		require.NoError(t, l.Take(t.Context(), acme, id, quota.Size{}, limits))
		require.NoError(t, l.Undo(t.Context(), acme, id))
	}
}

func TestThousandsOfSandboxesFitTheEntry(t *testing.T) {
	l := quota.Ledger{}.Clone()
	for range quota.MaxSandboxes {
		l.Holders[ids.New()] = quota.Holder{Since: 1_800_000_000, CPU: 256_000, Memory: 64 << 30, Workspace: 100 << 30}
	}
	for i := range 61 {
		l.Creates[1_800_000_000+int64(i)] = 8000
	}
	data, err := json.Marshal(l)
	require.NoError(t, err)
	require.Less(t, len(data), 1<<20)
	require.Len(t, slices.Collect(maps.Keys(l.Clone().Holders)), quota.MaxSandboxes)
}
