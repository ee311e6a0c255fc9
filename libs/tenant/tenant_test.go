package tenant_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/tenant"
)

var day = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// do decides and evolves, at a time.
func do(t *testing.T, s tenant.Tenant, at time.Time, c tenant.Command) (tenant.Tenant, []proto.Message) {
	t.Helper()
	bodies, err := tenant.Decide(s, c)
	require.NoError(t, err)
	for i, b := range bodies {
		s = s.Evolve(envelope.Recorded{Meta: envelope.Meta{Time: at}, Seq: s.Seq + uint64(i) + 1, Body: b})
	}
	return s, bodies
}

func created(t *testing.T) (tenant.Tenant, tenant.Secret) {
	t.Helper()
	s, _ := do(t, tenant.Tenant{ID: "acme"}, day, tenant.CreateTenant{Name: "Acme"})
	secret := tenant.NewSecret()
	s, _ = do(t, s, day, tenant.CreateKey{Secret: secret, Scopes: tenant.Create | tenant.Files, At: day, ExpiresAt: day.Add(time.Hour)})
	return s, secret
}

func TestAKeyIsKeptByItsDigestOnly(t *testing.T) {
	_, secret := created(t)
	s, _ := do(t, tenant.Tenant{ID: "acme"}, day, tenant.CreateTenant{})
	_, bodies := do(t, s, day, tenant.CreateKey{Secret: secret, Scopes: tenant.All, At: day})
	data, err := proto.Marshal(bodies[0])
	require.NoError(t, err)
	require.NotContains(t, string(data), secret.Text)
	require.Contains(t, string(data), secret.Prefix())
	require.NotContains(t, fmt.Sprintf("%v %s %+v %#v", secret, secret, secret, secret), secret.Text, "printing one does not show it")
	require.Regexp(t, `^st_[A-Za-z0-9_-]{43}[0-9a-f]{8}$`, secret.Text)
	require.NotEqual(t, secret.Text, tenant.NewSecret().Text)
}

func TestAKeyWorksUntilItsEnd(t *testing.T) {
	s, secret := created(t)
	k, there := s.Key(secret.ID)
	require.True(t, there)
	require.Equal(t, tenant.Digest(secret.Text), k.Digest)
	require.True(t, k.Works(day))
	require.False(t, k.Works(day.Add(time.Hour)))
	require.Equal(t, "expired", k.State(day.Add(time.Hour)))

	// The clock of who revoked it may be ahead.
	revoked, _ := do(t, s, day.Add(30*time.Minute), tenant.RevokeKeys{IDs: []string{secret.ID}, At: day})
	k, _ = revoked.Key(secret.ID)
	require.False(t, k.Works(day))
	require.Equal(t, "revoked", k.State(day))
	_, again := do(t, revoked, day, tenant.RevokeKeys{At: day})
	require.Empty(t, again)
	k, _ = s.Key(secret.ID)
	require.True(t, k.Works(day), "an older state stays as it was")
}

func TestRotation(t *testing.T) {
	s, old := created(t)
	fresh := tenant.NewSecret()
	s, _ = do(t, s, day, tenant.CreateKey{Secret: fresh, Scopes: tenant.All, At: day, Replaces: old.ID, ReplacedUntil: day.Add(time.Minute)})
	k, _ := s.Key(old.ID)
	require.Equal(t, fresh.ID, k.ReplacedBy)
	require.True(t, k.Works(day.Add(59*time.Second)))
	require.False(t, k.Works(day.Add(time.Minute)))
	_, err := tenant.Decide(s, tenant.CreateKey{Secret: tenant.NewSecret(), Scopes: tenant.All, At: day.Add(time.Hour), Replaces: old.ID})
	require.Equal(t, fault.FailedPrecondition, fault.CodeOf(err))
	s, _ = do(t, s, day, tenant.RevokeKeys{IDs: []string{old.ID}, At: day})
	k, _ = s.Key(old.ID)
	require.False(t, k.Works(day), "revoked while both work")
}

func TestRefusals(t *testing.T) {
	s, secret := created(t)
	full := s
	for range tenant.MaxKeys - 1 {
		full, _ = do(t, full, day, tenant.CreateKey{Secret: tenant.NewSecret(), Scopes: tenant.Stop, At: day})
	}
	key := func(change func(*tenant.CreateKey)) tenant.CreateKey {
		c := tenant.CreateKey{Secret: tenant.NewSecret(), Scopes: tenant.All, At: day}
		change(&c)
		return c
	}
	for name, c := range map[string]struct {
		state   tenant.Tenant
		command tenant.Command
		reason  fault.Reason
	}{
		"no tenant":         {tenant.Tenant{ID: "x"}, key(func(*tenant.CreateKey) {}), fault.ReasonTenantNotFound},
		"revoke, no tenant": {tenant.Tenant{ID: "x"}, tenant.RevokeKeys{At: day}, fault.ReasonTenantNotFound},
		"no scope":          {s, key(func(c *tenant.CreateKey) { c.Scopes = tenant.None }), fault.ReasonValidation},
		"over already":      {s, key(func(c *tenant.CreateKey) { c.ExpiresAt = day }), fault.ReasonValidation},
		"long name":         {s, key(func(c *tenant.CreateKey) { c.Name = strings.Repeat("x", tenant.MaxName+1) }), fault.ReasonValidation},
		"no such key":       {s, key(func(c *tenant.CreateKey) { c.Replaces = "nothing" }), fault.ReasonKeyNotFound},
		"revoke no key":     {s, tenant.RevokeKeys{IDs: []string{secret.ID, "nothing"}, At: day}, fault.ReasonKeyNotFound},
		"too many":          {full, key(func(*tenant.CreateKey) {}), fault.ReasonQuota},
		"name of bytes":     {tenant.Tenant{ID: "x"}, tenant.CreateTenant{Name: "\xff"}, fault.ReasonValidation},
	} {
		bodies, err := tenant.Decide(c.state, c.command)
		require.True(t, fault.Is(err, c.reason), "%s: %v", name, err)
		require.Empty(t, bodies)
	}
	_, again := do(t, s, day, tenant.CreateKey{Secret: secret, Scopes: tenant.All, At: day})
	require.Empty(t, again, "a command that was carried out already decides nothing")
	_, again = do(t, s, day, tenant.CreateTenant{Name: "other"})
	require.Empty(t, again)
}

func TestScopes(t *testing.T) {
	s, err := tenant.ParseScopes([]string{"stop", "create"})
	require.NoError(t, err)
	require.Equal(t, tenant.Create|tenant.Stop, s)
	require.Equal(t, "create,stop", s.String())
	require.True(t, s.Allows(tenant.Stop|tenant.Files))
	require.False(t, s.Allows(tenant.Files))
	require.True(t, tenant.Admin.Allows(tenant.Files))
	require.False(t, tenant.None.Allows(tenant.All))
	for _, bad := range [][]string{nil, {""}, {"Create"}, {"create", "create"}, {"everything"}} {
		_, err := tenant.ParseScopes(bad)
		require.Error(t, err, "%v", bad)
	}
}

// A tenant that makes and revokes keys all day is stopped while its keys can still be revoked.
func TestATenantsHistoryHasRoomToRevokeItsKeys(t *testing.T) {
	s, secret := created(t)
	create := tenant.CreateKey{Secret: tenant.NewSecret(), Scopes: tenant.Files, At: day}
	s.Events = tenant.MaxEvents - 1
	_, bodies := do(t, s, day, create)
	require.Len(t, bodies, 1)
	s.Events = tenant.MaxEvents
	_, err := tenant.Decide(s, create)
	require.True(t, fault.Is(err, fault.ReasonQuota), "%v", err)
	create.Replaces = secret.ID
	_, err = tenant.Decide(s, create)
	require.True(t, fault.Is(err, fault.ReasonQuota), "%v", err)
	s, _ = do(t, s, day, tenant.RevokeKeys{At: day})
	k, there := s.Key(secret.ID)
	require.True(t, there)
	require.False(t, k.Works(day.Add(time.Second)))
	require.Equal(t, tenant.MaxEvents+1, s.Events)
}
