package sandboxapi

import (
	"bytes"
	"encoding/base64"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/seal"
)

func signing(t *testing.T, secret byte) *Server {
	t.Helper()
	key, err := seal.New(bytes.Repeat([]byte{secret}, 32))
	require.NoError(t, err)
	return &Server{opt: Options{Signer: key}}
}

// A token is good at every server with the key until its time is over, and says nothing to who has it.
func TestTokensOfPreviews(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	want := ticket{Tenant: "acme", Sandbox: ids.New(), Port: 8000, Until: now.Unix() + 10, Actor: "key:k"}
	token, err := signing(t, 1).sign(want)
	require.NoError(t, err)
	plain, err := base64.RawURLEncoding.DecodeString(token)
	require.NoError(t, err)
	require.NotContains(t, string(plain), "acme")

	got, err := signing(t, 1).verified(token, now.Add(9*time.Second))
	require.NoError(t, err)
	require.Equal(t, want, got)
	_, err = signing(t, 1).verified(token, now.Add(10*time.Second))
	require.True(t, fault.Is(err, fault.ReasonTokenExpired), "%v", err)
	_, err = signing(t, 2).verified(token, now)
	require.True(t, fault.Is(err, fault.ReasonKeyInvalid), "another key: %v", err)
	for at := range plain {
		bad := bytes.Clone(plain)
		bad[at] ^= 1
		_, err := signing(t, 1).verified(base64.RawURLEncoding.EncodeToString(bad), now)
		require.True(t, fault.Is(err, fault.ReasonKeyInvalid), "byte %d: %v", at, err)
	}
	other, err := signing(t, 1).opt.Signer.Seal([]byte(`{"t":"acme","s":"`+want.Sandbox+`","p":1,"u":9999999999}`), []byte("acme/sandbox"))
	require.NoError(t, err)
	for _, bad := range []string{"", "x", token[1:], token + "=", base64.RawURLEncoding.EncodeToString(other)} {
		_, err := signing(t, 1).verified(bad, now)
		require.True(t, fault.Is(err, fault.ReasonKeyInvalid), "%q: %v", bad, err)
	}
}

func TestPathsOfPorts(t *testing.T) {
	for path, want := range map[string]*target{
		"/api/v1/sandboxes/a/toolbox/proxy/80":           {prefix: "/api/v1/sandboxes/a/toolbox/proxy/80", port: "80"},
		"/api/v1/sandboxes/a/toolbox/proxy/80/":          {prefix: "/api/v1/sandboxes/a/toolbox/proxy/80", rest: "/", port: "80"},
		"/api/v1/sandboxes/a/toolbox/proxy/80//x/../%2F": {prefix: "/api/v1/sandboxes/a/toolbox/proxy/80", rest: "//x/../%2F", port: "80"},
		"/api/v1/preview/tok/x":                          {prefix: "/api/v1/preview/tok", rest: "/x", token: "tok"},
		"/api/v1/preview/tok":                            {prefix: "/api/v1/preview/tok", token: "tok"},
		"/api/v1/sandboxes/a/toolbox/proxy":              nil,
		"/api/v1/sandboxes/a/toolbox/files":              nil,
		"/api/v1/sandboxes/a/preview":                    nil,
		"/x/toolbox/proxy/80/":                           nil,
	} {
		_, got, ok := ported(newRequest(t, http.MethodGet, "http://h"+path, ""))
		if want == nil {
			require.False(t, ok, path)
			continue
		}
		require.True(t, ok, path)
		require.Equal(t, *want, got, path)
	}
}

// What a program says of itself leads to it, and what it says of the host of this API is not said.
func TestAnswersOfPrograms(t *testing.T) {
	own := "/api/v1/preview/tok"
	v := &visit{port: 8000, call: &call{target: target{prefix: own, token: "tok"}, r: newRequest(t, http.MethodGet, "http://api.example/x", "")}}
	v.r.Host = "api.example"
	for from, want := range map[string]string{
		"/login?x=1#y":                    own + "/login?x=1#y",
		"http://localhost:8000":           own + "/",
		"http://127.0.0.1:8000/a":         own + "/a",
		"http://api.example/a":            own + "/a",
		own + "/a":                        own + "/a",
		"http://api.example" + own + "/a": own + "/a",
		"//localhost:8000/a":              own + "/a",
		"a/b":                             "a/b",
		"?q=1":                            "?q=1",
		"http://localhost:9000/":          "http://localhost:9000/",
		"https://elsewhere.example/x":     "https://elsewhere.example/x",
	} {
		require.Equal(t, want, v.outside(from), from)
	}
}
