package usecase

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
)

func TestAHintEndsWithTheNextEvent(t *testing.T) {
	f := natstest.Start(t)
	// The subscription of answers comes with the first publish.
	_, err := f.JS.Publish(t.Context(), subject.Tenant("acme").Subject(), []byte("any event"))
	require.NoError(t, err)
	before := f.NC.NumSubscriptions()
	base, stop := context.WithCancel(t.Context())
	h := &hints{ready: map[subject.Aggregate]hint{}}
	require.NoError(t, h.follow(base, f.NC))
	require.NoError(t, f.NC.Flush())
	one, other := subject.Sandbox("acme", ids.New()), subject.Sandbox("acme", ids.New())
	for _, agg := range []subject.Aggregate{one, other} {
		h.put(sandbox.Sandbox{Tenant: agg.Tenant, ID: agg.ID, State: sandbox.Ready, Worker: "w"})
		s, ok := h.get(agg)
		require.True(t, ok)
		require.Equal(t, "w", s.Worker)
	}
	_, ok := h.get(subject.Sandbox("other", one.ID))
	require.False(t, ok, "of another tenant")

	_, err = f.JS.Publish(t.Context(), one.Subject(), []byte("any event"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { _, ok := h.get(one); return !ok }, 20*time.Second, time.Millisecond)
	_, ok = h.get(other)
	require.True(t, ok)

	for _, state := range []string{sandbox.Requested, sandbox.Destroying, sandbox.Destroyed, sandbox.Failed} {
		h.put(sandbox.Sandbox{Tenant: one.Tenant, ID: one.ID, State: state})
		_, ok = h.get(one)
		require.False(t, ok, state)
	}
	h.ready[other] = hint{until: time.Now()}
	_, ok = h.get(other)
	require.False(t, ok, "too old")
	for range hintsMost + 1 {
		h.put(sandbox.Sandbox{Tenant: "acme", ID: ids.New(), State: sandbox.Ready})
	}
	require.LessOrEqual(t, len(h.ready), hintsMost)
	stop()
	require.Eventually(t, func() bool { return f.NC.NumSubscriptions() == before }, 20*time.Second, time.Millisecond)
}
