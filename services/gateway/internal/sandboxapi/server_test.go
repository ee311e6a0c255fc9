package sandboxapi

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func newRequest(t *testing.T, method, path, authorization string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, path, http.NoBody)
	require.NoError(t, err)
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	return r
}

func TestCredentialsAreFoundWhereClientsShowThem(t *testing.T) {
	for _, c := range []struct {
		headers map[string][]string
		want    string
	}{
		{nil, ""},
		{map[string][]string{"Authorization": {"Bearer k"}}, "ApiKey k"},
		{map[string][]string{"Authorization": {"bearer  k "}}, "ApiKey k"},
		{map[string][]string{"Authorization": {"ApiKey k"}}, "ApiKey k"},
		{map[string][]string{"Authorization": {"Bearer a.b.c"}}, "Bearer a.b.c"},
		{map[string][]string{headerToken: {"k"}}, "ApiKey k"},
		{map[string][]string{headerToken: {"k"}, "Authorization": {"Bearer other"}}, "ApiKey k"},
		{map[string][]string{headerToken: {"k", "k"}}, "none"},
		{map[string][]string{headerToken: {""}}, "none"},
		{map[string][]string{"Authorization": {"Bearer k", "Bearer k"}}, "none"},
		{map[string][]string{"Authorization": {""}}, "none"},
	} {
		require.Equal(t, c.want, credential(c.headers), "%v", c.headers)
	}
}
