package principal

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// FuzzKeys: a file of keys is refused as a whole, or each key in it is bound to a tenant, and nobody else is let in.
func FuzzKeys(f *testing.F) {
	whole := `{"keys":[{"name":"a","tenant":"acme","sha256":"` + hashed("right") + `"}]}`
	for _, s := range []string{
		whole, whole + whole, "", "{}", `{"keys":[]}`, `{"keys":[{}]}`, `{"keys":null}`, `{"KEYS":[{"name":"a","tenant":"acme","sha256":"` + hashed("x") + `"}]}`,
		`{"keys":[{"name":"a","tenant":"_none","sha256":"` + hashed("x") + `"}]}`, `[]`, `{"keys":[{"name":"a","tenant":"acme","sha256":"` + hashed("x") + `","expires":"noon"}]}`,
	} {
		f.Add([]byte(s), "ApiKey right")
	}
	f.Add([]byte(whole), "apikey  right ")
	f.Add([]byte(whole), "Bearer right")
	f.Add([]byte(whole), "")
	f.Fuzz(func(t *testing.T, data []byte, authorization string) {
		k, err := ParseKeys(bytes.NewReader(data))
		if err != nil {
			require.Nil(t, k)
			return
		}
		require.False(t, k.Development(), "a file never opens the door to everybody")
		p, err := k.Authenticate(authorization)
		if err != nil {
			require.Equal(t, fault.Unauthorized, fault.CodeOf(err))
			require.Equal(t, Principal{}, p)
			return
		}
		require.True(t, subject.ValidTenant(p.Tenant))
		require.NotEmpty(t, authorization)
	})
}
