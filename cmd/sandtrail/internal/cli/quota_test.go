package cli_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/quota"
)

type quotaLine struct {
	Tenant string `json:"tenant_id"`
	Quotas []struct {
		Name  string  `json:"name"`
		Limit any     `json:"limit"`
		Used  *uint64 `json:"used"`
	} `json:"quotas"`
}

func TestQuotasOfATenant(t *testing.T) {
	f := natstest.Start(t)
	t.Setenv("SANDTRAIL_NATS", f.URL)
	t.Setenv("SANDTRAIL_OPERATOR", "ann")
	r := runCLI(nil, nil, "quota", "set", "acme", "sandboxes=1")
	require.NotZero(t, r.code)
	require.Contains(t, r.stderr, "there is no tenant acme")
	said[map[string]any](t, "tenant", "create", "acme")
	for _, bad := range [][]string{
		{"acme", "boxes=1"}, {"acme", "sandboxes"}, {"acme", "sandboxes=-1"}, {"acme", "sandboxes=1.5"}, {"acme", "execs=1", "execs=2"}, {"a.b", "execs=1"}, {"acme"},
	} {
		require.Equal(t, cli.ExitUsage, runCLI(nil, nil, append([]string{"quota", "set"}, bad...)...).code, "%v", bad)
	}
	set := said[quotaLine](t, "quota", "set", "acme", "sandboxes=20", "memory_bytes=64Gi", "execs=unlimited")
	require.Equal(t, "acme", set.Tenant)
	require.InDelta(t, 20, set.Quotas[0].Limit, 0)
	require.Equal(t, "unlimited", set.Quotas[2].Limit)
	require.Equal(t, "default", set.Quotas[3].Limit)
	require.InDelta(t, 64<<30, set.Quotas[4].Limit, 0)

	ledgers, err := quota.NewLedgers(t.Context(), f.JS, time.Now)
	require.NoError(t, err)
	require.NoError(t, ledgers.Take(t.Context(), "acme", ids.New(), quota.Size{MemoryBytes: 1 << 30}, nil))
	shown := said[quotaLine](t, "quota", "show", "acme")
	require.EqualValues(t, 1, *shown.Quotas[0].Used)
	require.Nil(t, shown.Quotas[6].Used)
	table := runCLI(nil, nil, "quota", "show", "acme").stdout
	require.Regexp(t, `memory_bytes +64Gi +1Gi`, table)
	back := said[quotaLine](t, "quota", "set", "acme", "sandboxes=default")
	require.Equal(t, "default", back.Quotas[0].Limit)
	require.Equal(t, "unlimited", back.Quotas[2].Limit, "what is not named stays")
}
