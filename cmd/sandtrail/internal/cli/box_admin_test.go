package cli_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
)

// asked is one request that came to a server of named sandboxes.
type asked struct {
	what string
	body map[string]any
}

// serving answers each request, `METHOD /path`, with the document that is there for it, and others with not found.
func serving(t *testing.T, answers map[string]string) (got func() []asked) {
	t.Helper()
	var mu sync.Mutex
	var all []asked
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := asked{what: r.Method + " " + r.URL.EscapedPath()}
		if data, _ := io.ReadAll(r.Body); len(data) > 0 {
			_ = json.Unmarshal(data, &a.body)
		}
		mu.Lock()
		all = append(all, a)
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		text, ok := answers[a.what]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			text = `{"message":"there is none","error":{"code":"not_found","reason":"key_not_found","message":"there is none"}}`
		}
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(s.Close)
	t.Setenv("SANDTRAIL_API_URL", s.URL)
	t.Setenv("SANDTRAIL_CONFIG", t.TempDir()+"/none.json")
	return func() []asked {
		mu.Lock()
		defer mu.Unlock()
		got := all
		all = nil
		return got
	}
}

func TestUpdate(t *testing.T) {
	got := serving(t, map[string]string{
		"PATCH /api/v1/sandboxes/demo": `{"name":"demo","state":"RUNNING","expires_at":"2026-12-01T00:00:00Z","labels":{"b":"2","a":"1"},"ip":""}`,
	})
	run := func(args ...string) result { return runCLI(nil, nil, append([]string{"update"}, args...)...) }
	r := run("demo", "--ttl", "90m", "--label", "a=1", "-l", "b=2,c")
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout, "a=1 b=2")
	require.Contains(t, r.stdout, "2026-12-01T00:00:00Z")
	require.Equal(t, []asked{{"PATCH /api/v1/sandboxes/demo", map[string]any{"ttl_seconds": 5400.0, "labels": map[string]any{"a": "1", "b": "2,c"}}}}, got())
	require.Equal(t, 0, run("demo", "--no-labels").code)
	require.Equal(t, map[string]any{"labels": map[string]any{}}, got()[0].body)
	require.Equal(t, 0, run("demo", "--ttl", "60").code)
	require.Equal(t, map[string]any{"ttl_seconds": 60.0}, got()[0].body)
	require.JSONEq(t, `{"name":"demo","state":"RUNNING","expires_at":"2026-12-01T00:00:00Z","labels":{"b":"2","a":"1"},"ip":""}`, run("demo", "--ttl", "60", "-o", "json").stdout)
	got()
	require.Equal(t, cli.ExitNotFound, run("none", "--ttl", "60").code)
	got()
	for _, bad := range [][]string{
		{"demo"}, {}, {"demo", "--ttl", "soon"}, {"demo", "--ttl", "0.5"}, {"demo", "--label", "a"}, {"demo", "--label", "a=1", "--no-labels"},
	} {
		require.Equal(t, cli.ExitUsage, run(bad...).code, "%v", bad)
	}
	require.Empty(t, got(), "nothing was asked for")
}

func TestTokens(t *testing.T) {
	const secret = "e2b_0123456789abcdef0123456789abcdef01234567"
	got := serving(t, map[string]string{
		"POST /api/v1/tokens":                `{"token":"` + secret + `","id":"aabbccddeeff","name":"ci","prefix":"e2b_01234567","role":"user"}`,
		"GET /api/v1/tokens":                 `{"tokens":[{"id":"aabbccddeeff","name":"ci","prefix":"e2b_01234567","role":"user","created_at":"2026-11-30T00:00:00Z"}]}`,
		"DELETE /api/v1/tokens/e2b_01234567": `{"revoked":true}`,
	})
	r := runCLI(nil, nil, "token", "create", "ci")
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout, secret)
	require.Contains(t, r.stderr, "only time")
	require.Equal(t, 0, runCLI(nil, nil, "token", "create", "--scopes", "inspect,stop", "--role", "admin", "-o", "json").code)
	all := got()
	require.Equal(t, []asked{
		{"POST /api/v1/tokens", map[string]any{"name": "ci"}},
		{"POST /api/v1/tokens", map[string]any{"name": "", "role": "admin", "scopes": []any{"inspect", "stop"}}},
	}, all)
	r = runCLI(nil, nil, "token", "list")
	require.Equal(t, 0, r.code, r.stderr)
	require.Regexp(t, `(?m)^e2b_01234567 +ci +user +aabbccddeeff +2026-11-30`, r.stdout)
	r = runCLI(nil, nil, "token", "rm", "e2b_none", "e2b_01234567")
	require.Equal(t, cli.ExitNotFound, r.code, "one that fails keeps no other")
	require.Equal(t, "e2b_01234567  revoked\n", r.stdout)
	require.Contains(t, r.stderr, "e2b_none: there is none")
}

func TestPodersAreRemoved(t *testing.T) {
	got := serving(t, map[string]string{"DELETE /api/v1/poders/w1": `{"id":"w1"}`})
	r := runCLI(nil, nil, "poder", "delete", "w1")
	require.Equal(t, 0, r.code, r.stderr)
	require.Equal(t, "w1  removed\n", r.stdout)
	require.Equal(t, cli.ExitNotFound, runCLI(nil, nil, "poder", "delete", "a/b").code)
	require.Equal(t, "DELETE /api/v1/poders/a%2Fb", got()[1].what)
}

func TestANamedCreateMayAskForATimeOfIdleness(t *testing.T) {
	got := serving(t, map[string]string{"POST /api/v1/sandboxes": `{"job_id":"create-1","status":"PENDING"}`})
	r := runCLI(nil, nil, "create", "demo", "--no-wait", "--idle-timeout", "10m")
	require.Equal(t, 0, r.code, r.stderr)
	require.InDelta(t, 600, got()[0].body["idle_timeout_seconds"], 0)
}

func TestEgressRules(t *testing.T) {
	got := serving(t, map[string]string{
		"POST /api/v1/sandboxes": `{"job_id":"create-1","status":"PENDING"}`, "PATCH /api/v1/sandboxes/demo": `{"name":"demo","egress":{"allow":[]}}`,
	})
	rule := func(name, value string, ports ...any) map[string]any {
		r := map[string]any{name: value}
		if len(ports) > 0 {
			r["ports"] = ports
		}
		return r
	}
	r := runCLI(nil, nil, "create", "demo", "--no-wait", "--egress", "a.example", "--egress", "*.b.example:443,8443", "--egress", "1.2.3.0/24:22", "--egress", "2606::/32",
		"--egress", "[2607::/32]:53")
	require.Equal(t, 0, r.code, r.stderr)
	require.Equal(t, map[string]any{"allow": []any{
		rule("host", "a.example"), rule("host", "*.b.example", 443.0, 8443.0), rule("cidr", "1.2.3.0/24", 22.0), rule("cidr", "2606::/32"), rule("cidr", "2607::/32", 53.0),
	}}, got()[0].body["egress"])
	require.Equal(t, 0, runCLI(nil, nil, "update", "demo", "--egress", "c.example").code)
	require.Equal(t, map[string]any{"egress": map[string]any{"allow": []any{rule("host", "c.example")}}}, got()[0].body)
	require.Equal(t, 0, runCLI(nil, nil, "update", "demo", "--no-egress").code)
	require.Equal(t, map[string]any{"egress": map[string]any{"allow": []any{}}}, got()[0].body)
	for _, bad := range [][]string{{"--egress", "a.example:"}, {"--egress", "a.example:0"}, {"--egress", "a.example:https"}, {"--egress", "a.example", "--no-egress"}} {
		require.Equal(t, cli.ExitUsage, runCLI(nil, nil, append([]string{"update", "demo"}, bad...)...).code, "%v", bad)
	}
	require.Empty(t, got())
	require.Equal(t, cli.ExitUsage, runCLI(nil, nil, "create", "--egress", "a.example").code, "only with a name")
}

func TestASnapshotPrintsTheNameOfItsImage(t *testing.T) {
	got := serving(t, map[string]string{"POST /api/v1/sandboxes/demo/snapshot": `{"image":"mine:1","digest":"sha256:d","status":"COMPLETED"}`})
	r := runCLI(nil, nil, "snapshot", "demo", "--image", "mine:1")
	require.Equal(t, []any{0, "mine:1\n"}, []any{r.code, r.stdout}, r.stderr)
	require.Equal(t, []asked{{what: "POST /api/v1/sandboxes/demo/snapshot"}}, got())
	require.Equal(t, cli.ExitNotFound, runCLI(nil, nil, "snapshot", "none").code)
}
