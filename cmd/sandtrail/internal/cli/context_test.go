package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const contextsPath = "/api/v1/sandboxes/box/toolbox/code-interpreter/"

// interpreters answers calls by `METHOD PATH` below contextsPath, and keeps their bodies.
func interpreters(t *testing.T, answers map[string]string) (bodies map[string]map[string]any) {
	t.Helper()
	return below(t, "context", contextsPath, " ", answers)
}

func TestRunShowsWhatCodeComesTo(t *testing.T) {
	answers := map[string]string{"POST execute": `{"stdout":"o\n","stderr":"e\n","text":"42","error":null,"results":[
		{"type":"text/plain","data":"42"},{"type":"image/png","data":"cG5n"},{"type":"image/svg+xml","data":"<svg/>"},{"type":"application/json","data":{}}],"truncated":true}`}
	bodies := interpreters(t, answers)
	dir := filepath.Join(t.TempDir(), "images")
	r := runCLI(nil, nil, "run", "box", "6", "*", "7", "--context", "c1", "--timeout", "1m30s", "--images", dir)
	require.Equal(t, []any{0, "o\n42\n"}, []any{r.code, r.stdout}, r.stderr)
	require.Contains(t, r.stderr, "e\n")
	require.Contains(t, r.stderr, "more output")
	require.Equal(t, map[string]any{"code": "6 * 7", "context_id": "c1", "timeout": 90.0}, bodies["POST execute"])
	for name, want := range map[string]string{"image-1.png": "png", "image-2.svg": "<svg/>"} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
	r = runCLI([]byte("x = 1\n"), nil, "run", "box", "-", "-o", "json")
	require.Equal(t, 0, r.code, r.stderr)
	require.Equal(t, "x = 1\n", bodies["POST execute"]["code"])
	require.Contains(t, r.stdout, `"text": "42"`)

	answers["POST execute"] = `{"stdout":"o","stderr":"","text":null,"error":{"name":"ValueError","value":"no","traceback":"Traceback\n  line\nValueError: no\n"}}`
	r = runCLI(nil, nil, "run", "box", "x")
	require.Equal(t, result{1, "o", "Traceback\n  line\nValueError: no\n"}, r)
	answers["POST execute"] = `{"error":{"name":"ContextCrashed","value":"it ended","traceback":""}}`
	require.Equal(t, result{1, "", "ContextCrashed: it ended\n"}, runCLI(nil, nil, "run", "box", "x"))
	delete(answers, "POST execute")
	require.Equal(t, 242, runCLI(nil, nil, "run", "box", "x").code)
	for _, args := range [][]string{{"run", "box"}, {"run", "box", ""}, {"run", "box", "x", "--timeout", "soon"}, {"run", "box", strings.Repeat("x", 1<<20+1)}} {
		require.Equal(t, 240, runCLI(nil, nil, args...).code, "%.50q", args)
	}
}

func TestContextsOnTheCommandLine(t *testing.T) {
	bodies := interpreters(t, map[string]string{
		"POST contexts": `{"id":"c1","language":"python"}`, "POST contexts/c1/restart": `{"id":"c1","python":"3.12.1"}`,
		"GET contexts":       `{"contexts":[{"id":"c0","state":"RUNNING","default":true,"cwd":"","created_at":"2026-01-01T00:00:00Z"},{"id":"c1","state":"RUNNING","default":false,"cwd":"/x"}]}`,
		"DELETE contexts/c1": `{"id":"c1","state":"ENDED"}`, "DELETE contexts/c2": `{"id":"c2","state":"RUNNING"}`,
	})
	require.Equal(t, result{0, "c1\n", ""}, runCLI(nil, nil, "context", "create", "box", "--cwd", "/x"))
	require.Equal(t, map[string]any{"language": "python", "cwd": "/x"}, bodies["POST contexts"])
	r := runCLI(nil, nil, "context", "list", "box")
	require.Regexp(t, `(?s)^ID +STATE +DEFAULT.*\nc0 +RUNNING +true +- .*\nc1 +RUNNING +false +/x`, r.stdout)
	require.Contains(t, runCLI(nil, nil, "context", "list", "box", "-o", "json").stdout, `"id": "c0"`)
	require.Equal(t, result{0, "c1\n", ""}, runCLI(nil, nil, "context", "restart", "box", "c1"))
	r = runCLI(nil, nil, "context", "rm", "box", "c1", "none", "c2")
	require.Equal(t, []any{242, "c1  ended\nc2  is being ended\n"}, []any{r.code, r.stdout})
	require.Contains(t, r.stderr, "none: there is no context")
	require.Equal(t, 242, runCLI(nil, nil, "context", "restart", "box", "none").code)
}
