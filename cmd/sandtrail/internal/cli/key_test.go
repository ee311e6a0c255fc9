package cli_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

type keyLine struct {
	Key        string     `json:"key"`
	ID         string     `json:"key_id"`
	Prefix     string     `json:"prefix"`
	State      string     `json:"state"`
	Scopes     []string   `json:"scopes"`
	ReplacedBy string     `json:"replaced_by"`
	ExpiresAt  *time.Time `json:"expires_at"`
	LastUsedAt *time.Time `json:"last_used_at"`
}

func said[T any](t *testing.T, args ...string) (v T) {
	t.Helper()
	r := runCLI(nil, nil, append(args, "--output", "json")...)
	require.Equal(t, 0, r.code, r.stderr)
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &v), r.stdout)
	return v
}

func TestKeysOfATenant(t *testing.T) {
	f := natstest.Start(t)
	t.Setenv("SANDTRAIL_NATS", f.URL)
	t.Setenv("SANDTRAIL_OPERATOR", "ann")
	r := runCLI(nil, nil, "key", "create", "--tenant", "acme", "--scopes", "create")
	require.NotZero(t, r.code)
	require.Contains(t, r.stderr, "there is no tenant acme")

	said[map[string]any](t, "tenant", "create", "acme", "--name", "Acme")
	said[map[string]any](t, "tenant", "create", "acme")
	made := said[keyLine](t, "key", "create", "--tenant", "acme", "--scopes", "create,execute,stop", "--expires", "1h")
	require.Equal(t, []string{"create", "execute", "stop"}, made.Scopes)
	require.WithinDuration(t, time.Now().Add(time.Hour), *made.ExpiresAt, time.Minute)
	table := runCLI(nil, nil, "key", "create", "--tenant", "acme", "--scopes", "admin")
	require.Regexp(t, `st_[A-Za-z0-9_-]{51}`, table.stdout)

	_, err := f.JS.Publish(t.Context(), subject.BucketKey(topology.BucketKey, "acme."+made.ID), []byte("2026-11-30T07:00:00Z"))
	require.NoError(t, err)
	list := said[[]keyLine](t, "key", "list", "--tenant", "acme")
	require.Len(t, list, 2)
	require.Empty(t, list[0].Key, "a key is shown once")
	require.Equal(t, made.Key[:11], list[0].Prefix)
	require.NotNil(t, list[0].LastUsedAt)
	require.NotContains(t, runCLI(nil, nil, "key", "ls").stdout, made.Key)

	fresh := said[keyLine](t, "key", "rotate", "--tenant", "acme", made.ID)
	require.Equal(t, made.Scopes, fresh.Scopes)
	require.Equal(t, made.ExpiresAt, fresh.ExpiresAt)
	all := said[[]keyLine](t, "key", "list", "--all")
	require.Equal(t, "revoked", all[0].State)
	require.Equal(t, fresh.ID, all[0].ReplacedBy)
	require.Equal(t, "revoked", said[[]keyLine](t, "key", "revoke", "--tenant", "acme", fresh.ID, "--note", "leaked")[0].State)
	require.NotZero(t, runCLI(nil, nil, "key", "revoke", "--tenant", "acme", "nothing").code)
	said[map[string]any](t, "tenant", "revoke", "acme")
	require.Empty(t, said[[]keyLine](t, "key", "list"))
	tenants := said[[]map[string]any](t, "tenant", "list")
	require.Equal(t, "Acme", tenants[0]["name"])
	require.Zero(t, tenants[0]["live_keys"])

	s, err := f.JS.Stream(t.Context(), topology.StreamEvents)
	require.NoError(t, err)
	m, err := s.GetMsg(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, "operator:ann", m.Header.Get("Sandtrail-Actor"))
	require.NotContains(t, contents(t, f), made.Key)
}

// contents is everything that stands in the log.
func contents(t *testing.T, f *natstest.Fixture) (all string) {
	t.Helper()
	s, err := f.JS.Stream(t.Context(), topology.StreamEvents)
	require.NoError(t, err)
	for seq := uint64(1); seq <= s.CachedInfo().State.LastSeq; seq++ {
		m, err := s.GetMsg(t.Context(), seq)
		require.NoError(t, err)
		all += string(m.Data)
	}
	return all
}

func TestKeysThatAreRefused(t *testing.T) {
	for _, args := range [][]string{
		{"key", "create", "--tenant", "a.b", "--scopes", "create"},
		{"key", "create", "--tenant", "acme", "--scopes", "everything"},
		{"key", "create", "--tenant", "acme", "--scopes", "create,create"},
		{"key", "create", "--tenant", "acme", "--scopes", "create", "--expires", "-1h"},
		{"key", "create", "--scopes", "create"},
		{"key", "rotate", "--tenant", "acme", "x", "--overlap", "-1s"},
		{"tenant", "create", "a b"},
		{"key", "list", "--tenant", ">"},
	} {
		r := runCLI(nil, nil, args...)
		require.Equal(t, cli.ExitUsage, r.code, "%v: %s", args, r.stderr)
	}
}
