package tenant_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/tenant"
)

// A token has the shape that published clients look for, and is a key like any other.
func TestATokenIsAKeyOfAnotherShape(t *testing.T) {
	s, _ := created(t)
	seen := map[string]bool{}
	for range 100 {
		secret := tenant.NewToken()
		require.Regexp(t, `^e2b_[0-9a-f]{40}$`, secret.Text)
		require.Equal(t, secret.Text[:12], secret.Prefix())
		require.Regexp(t, `^[0-9a-f]{12}$`, secret.ID)
		require.NotContains(t, secret.String(), secret.Text[12:])
		require.False(t, seen[secret.Text] || seen[secret.ID])
		seen[secret.Text], seen[secret.ID] = true, true
		s, _ = do(t, s, day, tenant.CreateKey{Secret: secret, Scopes: tenant.Admin, At: day})
		k, there := s.Key(secret.ID)
		require.True(t, there && k.Works(day))
		require.Equal(t, tenant.Digest(secret.Text), k.Digest)
		require.Equal(t, secret.Prefix(), k.Prefix)
	}
	require.Len(t, tenant.NewSecret().Prefix(), len("st_")+8)
	require.Equal(t, "st_x", tenant.Secret{Text: "st_x"}.Prefix(), "what is shorter than a prefix is all of it")
}
