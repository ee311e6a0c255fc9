package mcpapi

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
)

func TestTableOfSessions(t *testing.T) {
	now := time.Unix(0, 0)
	table := newTable()
	table.now = func() time.Time { return now }
	table.most, table.each = 4, 2
	open := func(owner string) *session {
		t.Helper()
		s, err := table.open(owner, "")
		require.NoError(t, err)
		now = now.Add(time.Second)
		return s
	}
	busy, idle := open("a"), open("a")
	table.leave(idle)
	require.Nil(t, table.use(idle.id, "b", ""), "it is the owner's alone")
	require.Nil(t, table.use("unknown", "a", ""))
	require.Nil(t, table.use(idle.id, "a", "box"), "it is about any sandbox, and not found where one is named")

	third := open("a")
	require.Error(t, idle.ctx.Err(), "a third one of an owner ends the one that is idle")
	require.Nil(t, table.use(idle.id, "a", ""))
	require.NoError(t, busy.ctx.Err())
	_, err := table.open("a", "")
	require.True(t, fault.Is(err, fault.ReasonConflict), "none is idle")

	open("b")
	open("c")
	_, err = table.open("d", "")
	require.Equal(t, fault.Unavailable, fault.CodeOf(err), "the gateway is full of others' sessions")

	table.leave(third)
	now = now.Add(sessionIdle)
	table.sweep()
	require.NotNil(t, table.use(third.id, "a", ""), "not idle for longer than it may be")
	table.leave(third)
	now = now.Add(sessionIdle + time.Second)
	table.sweep()
	require.Nil(t, table.use(third.id, "a", ""))
	require.NotNil(t, table.use(busy.id, "a", ""), "one that is at work is not idle")
	table.clear(errStopping)
	require.Zero(t, table.len())
	require.Error(t, busy.ctx.Err())
}

// However many keys a tenant has, it leaves room for others.
func TestSessionsOfATenantAreBounded(t *testing.T) {
	table := newTable()
	table.most, table.tenant, table.each = 4, 2, 2
	for _, owner := range []string{"acme\x00key:1", "acme\x00key:2"} {
		_, err := table.open(owner, "")
		require.NoError(t, err)
	}
	_, err := table.open("acme\x00key:3", "")
	require.Equal(t, fault.Unavailable, fault.CodeOf(err))
	s, err := table.open("other\x00key:1", "")
	require.NoError(t, err)
	table.leave(s)
	_, err = table.open("acme\x00key:3", "")
	require.Error(t, err, "what is idle of another tenant is not ended for it")
	require.NoError(t, s.ctx.Err())
}
