package cli_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sessionsAt answers calls by `METHOD/PATH` below the sessions of a sandbox, and keeps their bodies.
func sessionsAt(t *testing.T, answers map[string]string) (bodies map[string]map[string]any) {
	t.Helper()
	return below(t, "session", "/api/v1/sandboxes/box/session", "", answers)
}

// below answers calls by their method, by and their path below base, and keeps their bodies. Others find no such thing.
func below(t *testing.T, thing, base, by string, answers map[string]string) (bodies map[string]map[string]any) {
	t.Helper()
	bodies = map[string]map[string]any{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call := r.Method + by + strings.TrimPrefix(r.URL.EscapedPath(), base)
		data, _ := io.ReadAll(r.Body)
		v := map[string]any{}
		_ = json.Unmarshal(data, &v)
		bodies[call] = v
		answer, ok := answers[call]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			answer = `{"message":"m","error":{"code":"not_found","reason":"exec_not_found","message":"there is no ` + thing + `"}}`
		}
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(s.Close)
	t.Setenv("SANDTRAIL_API_URL", s.URL)
	t.Setenv("SANDTRAIL_CONFIG", filepath.Join(t.TempDir(), "none"))
	return bodies
}

func TestSessionExec(t *testing.T) {
	answers := map[string]string{"POST/s1/exec": `{"stdout":"o\uFFFD","stdout_base64":"b/8=","stderr":"e\n","exit_code":7,"reason":"exited"}`}
	bodies := sessionsAt(t, answers)
	require.Equal(t, result{7, "o\xff", "e\n"}, runCLI(nil, nil, "session", "exec", "box", "s1", "--timeout", "1m30s", "--", "ls", "-l"))
	require.Equal(t, map[string]any{"command": "ls -l", "timeout": 90.0}, bodies["POST/s1/exec"])

	answers["POST/s1/exec"] = `{"stdout":"","stderr":"","exit_code":124,"truncated":true,"message":"it took longer than 1s and was interrupted"}`
	r := runCLI([]byte("cat <<E\nx\nE\n"), nil, "session", "exec", "box", "s1", "-")
	require.Equal(t, 124, r.code)
	require.Contains(t, r.stderr, "more output")
	require.Contains(t, r.stderr, "was interrupted")
	require.Equal(t, "cat <<E\nx\nE\n", bodies["POST/s1/exec"]["command"])
	answers["POST/s1/exec"] = `{"stdout":"x","stderr":"","exit_code":0}`
	r = runCLI(nil, nil, "session", "exec", "box", "s1", "true", "-o", "json")
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout, `"stdout": "x"`)

	answers["POST/s1/exec"] = `{"stdout":"","stdout_base64":"!"}`
	require.Equal(t, 249, runCLI(nil, nil, "session", "exec", "box", "s1", "true").code)
	require.Equal(t, 242, runCLI(nil, nil, "session", "exec", "box", "none", "true").code)
	for _, args := range [][]string{{"box"}, {"box", "s1"}, {"box", "s1", " "}, {"box", "s1", strings.Repeat("x", 64<<10+1)}} {
		require.Equal(t, 240, runCLI(nil, nil, append([]string{"session", "exec"}, args...)...).code, "%.50q", args)
	}
}

func TestSessionsAreMadeShownAndEnded(t *testing.T) {
	answers := map[string]string{
		"POST":        `{"session_id":"s1","execution_id":"x1","state":"RUNNING"}`,
		"GET":         `{"sessions":[{"session_id":"s1","state":"RUNNING","created_at":"2026-05-01T00:00:00Z"}]}`,
		"GET/a%2Fb":   `{"session_id":"a/b","execution_id":"x1","state":"TERMINATED","exit_code":3,"reason":"exited"}`,
		"DELETE/s1":   `{"state":"TERMINATED"}`,
		"DELETE/slow": `{"state":"RUNNING"}`,
	}
	bodies := sessionsAt(t, answers)
	require.Equal(t, result{0, "s1\n", ""}, runCLI(nil, nil, "session", "create", "box"))
	require.Equal(t, result{0, "s1\n", ""}, runCLI(nil, nil, "session", "create", "box", "s1", "--cwd", "/w", "-e", "A=b"))
	require.Equal(t, map[string]any{"session_id": "s1", "cwd": "/w", "env": map[string]any{"A": "b"}}, bodies["POST"])
	require.Regexp(t, `s1 +RUNNING +2026-05-01`, runCLI(nil, nil, "session", "list", "box").stdout)
	got := runCLI(nil, nil, "session", "get", "box", "a/b")
	require.Equal(t, 0, got.code, got.stderr)
	require.Regexp(t, `(?s)TERMINATED.*exited.*3`, got.stdout)
	require.Contains(t, runCLI(nil, nil, "session", "get", "box", "a/b", "-o", "json").stdout, `"exit_code": 3`)
	r := runCLI(nil, nil, "session", "delete", "box", "s1", "none", "slow")
	require.Equal(t, 242, r.code)
	require.Equal(t, "s1  ended\nslow  is being ended\n", r.stdout)
	require.Contains(t, r.stderr, "there is no session")
	require.Equal(t, 240, runCLI(nil, nil, "session", "delete", "box").code)
}
