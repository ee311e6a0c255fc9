package quota_test

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/quota"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
)

// worker is one worker's share, which settles until it is killed.
func worker(t *testing.T, f *natstest.Fixture, name string) (s *quota.Shares, kill func()) {
	t.Helper()
	s, err := quota.NewShares(t.Context(), f.JS, name, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	var once sync.Once
	kill = func() { once.Do(func() { cancel(); require.NoError(t, <-done) }) }
	t.Cleanup(kill)
	return s, kill
}

func execsInUse(t *testing.T, f *natstest.Fixture) uint64 {
	t.Helper()
	used, err := quota.Used(t.Context(), f.JS, acme)
	require.NoError(t, err)
	return used[tenant.Execs]
}

// Execs come and go on three workers; together they are never more than the tenant may have, and in the end each place is free for any worker.
func TestExecsOfSeveralWorkersStayBelowTheLimit(t *testing.T) {
	f := natstest.Start(t)
	const limit = 20
	limits := tenant.Quotas{tenant.Execs: limit}
	var workers []*quota.Shares
	var running, most, refused atomic.Int64
	var wg sync.WaitGroup
	for _, name := range []string{"w1", "w2", "w3"} {
		s, _ := worker(t, f, name)
		workers = append(workers, s)
		for range 12 {
			wg.Go(func() {
				for range 60 {
					err := patient(t, func() error { return s.Take(t.Context(), acme, limits) })
					if fault.Is(err, fault.ReasonQuota) {
						refused.Add(1)
						continue
					}
					if err != nil {
						panic(err)
					}
					now := running.Add(1)
					for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
					}
					running.Add(-1)
					s.Free(acme)
				}
			})
		}
	}
	wg.Wait()
	require.LessOrEqual(t, most.Load(), int64(limit))
	require.Eventually(t, func() bool { return execsInUse(t, f) == 0 }, 10*time.Second, 10*time.Millisecond, "what was set aside is given back")
	for range limit {
		require.NoError(t, workers[2].Take(t.Context(), acme, limits))
	}
	err := workers[0].Take(t.Context(), acme, limits)
	require.True(t, fault.Is(err, fault.ReasonQuota), "%v", err)
	require.Equal(t, "execs", fault.From(err).Quota)
	require.Equal(t, time.Second, fault.From(err).RetryAfter)
	workers[2].Free(acme)
	require.Eventually(t, func() bool { return workers[0].Take(t.Context(), acme, limits) == nil }, 10*time.Second, 10*time.Millisecond,
		"a place that one worker gives back is another's within a second or two")
}

// What a worker had set aside when it was killed is given back by its next process, but for the execs that go on.
func TestWhatAKilledWorkerHeldIsGivenBack(t *testing.T) {
	f := natstest.Start(t)
	limits := tenant.Quotas{tenant.Execs: 4}
	s, kill := worker(t, f, "w1")
	for range 4 {
		require.NoError(t, s.Take(t.Context(), acme, limits))
	}
	kill()
	other, _ := worker(t, f, "w2")
	require.True(t, fault.Is(other.Take(t.Context(), acme, limits), fault.ReasonQuota), "its execs may go on without it")
	again, err := quota.NewShares(t.Context(), f.JS, "w1", slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	again.Add(acme) // the one that is found again
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- again.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
	require.Eventually(t, func() bool { return execsInUse(t, f) == 1 }, 10*time.Second, 10*time.Millisecond)
	for range 3 {
		require.NoError(t, other.Take(t.Context(), acme, limits))
	}
	require.True(t, fault.Is(other.Take(t.Context(), acme, limits), fault.ReasonQuota))
}

func TestWithoutALimitExecsAreOnlyCounted(t *testing.T) {
	f := natstest.Start(t)
	s, _ := worker(t, f, "w1")
	for range 100 {
		require.NoError(t, s.Take(t.Context(), acme, nil))
	}
	require.Eventually(t, func() bool { return execsInUse(t, f) == 100 }, 10*time.Second, 10*time.Millisecond)
	require.True(t, fault.Is(s.Take(t.Context(), acme, tenant.Quotas{tenant.Execs: 100}), fault.ReasonQuota), "a limit that is set later holds")
	require.True(t, fault.Is(s.Take(t.Context(), acme, tenant.Quotas{tenant.Execs: 0}), fault.ReasonQuota))
}

// A quota that is set holds within two seconds, and without the log nobody guesses.
func TestTheBookFollowsTheLog(t *testing.T) {
	f := natstest.Start(t)
	log := jslog.New(f.JS)
	b := quota.NewBook(log, tenant.Quotas{tenant.Sandboxes: 20})
	sandboxes := func() uint64 {
		q, err := b.Of(t.Context(), acme)
		require.NoError(t, err)
		n, _ := q.Limit(tenant.Sandboxes)
		return n
	}
	require.EqualValues(t, 20, sandboxes(), "a tenant need not have been created")
	set := func(c tenant.Command) {
		t.Helper()
		h, err := log.Load(t.Context(), subject.Tenant(acme))
		require.NoError(t, err)
		bodies, err := tenant.Decide(tenant.Fold(h), c)
		require.NoError(t, err)
		_, err = log.Append(t.Context(), subject.Tenant(acme), h.Tail(), tenant.Events(acme, ids.New(), "operator:test", time.Now(), bodies...)...)
		require.NoError(t, err)
	}
	set(tenant.CreateTenant{})
	set(tenant.SetQuota{Set: tenant.Quotas{tenant.Sandboxes: 3}})
	require.Eventually(t, func() bool { return sandboxes() == 3 }, 30*time.Second, 20*time.Millisecond)
	own, all, err := b.Both(t.Context(), acme)
	require.NoError(t, err)
	require.Equal(t, own, all)
	f.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = quota.NewBook(log, nil).Of(ctx, acme)
	require.Error(t, err)
	require.NotErrorIs(t, err, context.Canceled)
}
