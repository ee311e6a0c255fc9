package cli_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

type subscriber struct {
	Name         string `json:"name"`
	Tenant       string `json:"tenant_id"`
	Stream       string `json:"stream"`
	Consumer     string `json:"consumer"`
	Acknowledged uint64 `json:"acknowledged"`
	Pending      uint64 `json:"pending"`
	UnderWay     int    `json:"under_way"`
}

func TestSubscribersHaveAPlaceInTheEventsOfTheirTenant(t *testing.T) {
	f := natstest.Start(t)
	t.Setenv("SANDTRAIL_NATS", f.URL)
	for i := range 6 {
		_, err := f.JS.Publish(t.Context(), subject.Exec([]string{"acme", "rival"}[i%2], "box", fmt.Sprint(i)).Subject(), nil)
		require.NoError(t, err)
	}
	run := func(into any, args ...string) {
		t.Helper()
		r := runCLI(nil, nil, append(append([]string{"subscriber"}, args...), "-o", "json")...)
		require.Equal(t, 0, r.code, r.stderr)
		require.NoError(t, json.Unmarshal([]byte(r.stdout), into))
	}
	var made subscriber
	run(&made, "create", "billing", "--tenant", "acme")
	require.Equal(t, subscriber{Name: "billing", Tenant: "acme", Stream: "EVT", Consumer: "subscriber-billing", Pending: 3}, made)
	run(&made, "create", "billing", "--tenant", "acme")
	require.EqualValues(t, 3, made.Pending, "again is no other")
	require.Equal(t, cli.ExitRefused, runCLI(nil, nil, "subscriber", "create", "billing", "--tenant", "rival").code)
	run(&made, "create", "late", "--tenant", "acme", "--from", "4")
	require.EqualValues(t, 1, made.Pending)
	run(&made, "create", "rivals", "--tenant", "rival")

	c, err := f.JS.Consumer(t.Context(), topology.StreamEvents, "subscriber-billing")
	require.NoError(t, err)
	m, err := c.Next()
	require.NoError(t, err)
	require.NoError(t, m.DoubleAck(t.Context()))
	_, err = c.Next()
	require.NoError(t, err)
	var all []subscriber
	run(&all, "ls", "--tenant", "acme")
	require.Equal(t, []subscriber{
		{Name: "billing", Tenant: "acme", Stream: "EVT", Consumer: "subscriber-billing", Acknowledged: 1, Pending: 1, UnderWay: 1},
		{Name: "late", Tenant: "acme", Stream: "EVT", Consumer: "subscriber-late", Acknowledged: 3, Pending: 1},
	}, all)
	table := runCLI(nil, nil, "subscriber", "list")
	require.Contains(t, table.stdout, "rivals")
	require.Equal(t, 4, strings.Count(table.stdout, "\n"), "only subscribers: %s", table.stdout)

	require.Equal(t, 0, runCLI(nil, nil, "subscriber", "delete", "billing").code)
	require.Equal(t, cli.ExitNotFound, runCLI(nil, nil, "subscriber", "delete", "billing").code)
	_, err = f.JS.Consumer(t.Context(), topology.StreamEvents, "subscriber-billing")
	require.ErrorIs(t, err, jetstream.ErrConsumerNotFound)
}

func TestSubscribersAreNamedAsWritten(t *testing.T) {
	for _, args := range [][]string{
		{"create", "a.b", "--tenant", "acme"},
		{"create", "a", "--tenant", "a.b"},
		{"create", "a"},
		{"delete", ">"},
		{"config", "a", "--tenant", "acme", "--nkey", "SUAM"},
		{"config", "a", "--tenant", "acme"},
		{"create", "a", "--tenant", "acme", "--from", "-1"},
	} {
		require.Equal(t, cli.ExitUsage, runCLI(nil, nil, append([]string{"subscriber"}, args...)...).code, "%s", args)
	}
}

func TestASubscribersConfigurationHoldsNoSecret(t *testing.T) {
	pair, err := nkeys.CreateUser()
	require.NoError(t, err)
	public, err := pair.PublicKey()
	require.NoError(t, err)
	r := runCLI(nil, nil, "subscriber", "config", "billing", "--tenant", "acme", "--nkey", public, "--account", "LOG")
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout, `"subscriber-billing" {`)
	require.Contains(t, r.stdout, public)
	require.Contains(t, r.stdout, `service: { account: "LOG"`)
	seed, err := pair.Seed()
	require.NoError(t, err)
	require.Equal(t, cli.ExitUsage, runCLI(nil, nil, "subscriber", "config", "billing", "--tenant", "acme", "--nkey", string(seed)).code)
	require.NotContains(t, runCLI(nil, nil, "subscriber", "config", "billing", "--tenant", "acme", "--nkey", string(seed)).stderr, string(seed))
}
