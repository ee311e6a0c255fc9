package principal

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/tenant"
)

func hashed(key string) string {
	s := sha256.Sum256([]byte(key))
	return hex.EncodeToString(s[:])
}

func TestEveryMistakeInAKeysFileAtOnce(t *testing.T) {
	_, err := ParseKeys(strings.NewReader(`{"keys":[
		{"name":"a","tenant":"acme","sha256":"xyz"},
		{"name":"b","tenant":"a.b","sha256":"` + hashed("b") + `"},
		{"name":"","tenant":"acme","sha256":"` + hashed("c") + `"},
		{"name":"d","tenant":"acme","sha256":"` + hashed("") + `"},
		{"name":"e","tenant":"acme","sha256":"` + hashed("e") + `"},
		{"name":"f","tenant":"acme","sha256":"` + strings.ToUpper(hashed("e")) + `"}]}`))
	for _, want := range []string{"keys[0]: sha256", "keys[1]: tenant", "keys[2]: name", "keys[3]: sha256", "keys[5]: the same key"} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, err.Error(), "keys[4]")
	for _, bad := range []string{
		``, `{}`, `{"keys":[]}`, `{"keys":[],"more":1}`, `{"keys":[{"key":"clear"}]}`,
		`{"keys":[{"name":"a","tenant":"t","sha256":"` + hashed("a") + `"}]} {"keys":[]}`,
	} {
		k, err := ParseKeys(strings.NewReader(bad))
		require.Error(t, err, bad)
		require.Nil(t, k)
	}
	_, err = LoadKeys(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestKeyExpires(t *testing.T) {
	at := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	k, err := ParseKeys(strings.NewReader(`{"keys":[{"name":"a","tenant":"acme","sha256":"` + hashed("secret") + `","expires":"2026-12-01T00:00:00Z"}]}`))
	require.NoError(t, err)
	k.now = func() time.Time { return at.Add(-time.Nanosecond) }
	p, err := k.Authenticate("ApiKey secret")
	require.NoError(t, err)
	require.Equal(t, Principal{Tenant: "acme", Actor: "key:a", Scopes: tenant.All}, p)
	k.now = func() time.Time { return at }
	_, err = k.Authenticate("ApiKey secret")
	require.True(t, fault.Is(err, fault.ReasonKeyInvalid))
}

func TestNoCallerWithoutAuthentication(t *testing.T) {
	_, err := From(t.Context())
	require.Equal(t, fault.Unauthorized, fault.CodeOf(err))
}
