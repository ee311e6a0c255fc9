package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// A shell that keeps its state, in a real sandbox: what a command changes the next one finds, one that takes too long is interrupted and costs
// nothing else, and the session ends with its shell.
func TestSessionInASandbox(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs a sandbox")
	}
	s := stack.Up(t)
	call := func(method, path string, body any) (int, map[string]any) {
		t.Helper()
		data, err := json.Marshal(body)
		require.NoError(t, err)
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.HTTP+"/api/v1/sandboxes"+path, bytes.NewReader(data))
		require.NoError(t, err)
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		answer, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		v := map[string]any{}
		require.NoError(t, json.Unmarshal(answer, &v), "%s", answer)
		return res.StatusCode, v
	}
	status, v := call("POST", "", map[string]any{"name": "box"})
	require.Equal(t, http.StatusCreated, status, "%v", v)
	status, v = call("POST", "/box/session", nil)
	require.Equal(t, http.StatusCreated, status, "%v", v)
	at := "/box/session/" + v["session_id"].(string)
	run := func(command string, timeout float64) map[string]any {
		t.Helper()
		status, v := call("POST", at+"/exec", map[string]any{"command": command, "timeout": timeout})
		require.Equal(t, http.StatusOK, status, "%s: %v", command, v)
		return v
	}
	gives := func(command string, code float64, out string) {
		t.Helper()
		v := run(command, 60)
		require.Equal(t, []any{code, out}, []any{v["exit_code"], v["stdout"]}, "%s: %v", command, v)
	}
	gives("mkdir -p deep && cd deep && export A=1 && f() { echo \"f $A $1\"; return 7; }", 0, "")
	gives("f 'x y'; pwd", 0, "f 1 x y\n/workspace/deep\n")
	gives("f z", 7, "f 1 z\n")
	gives("cat <<'E'\nit's $A\nE\ncat; echo $?", 0, "it's $A\n0\n")
	gives("echo \"unfinished", 2, "")
	v = run("echo out; echo err >&2", 60)
	require.Equal(t, []any{"out\n", "err\n", "/workspace/deep"}, []any{v["stdout"], v["stderr"], v["cwd"]})
	v = run("head -c 2000000 /dev/zero | tr '\\0' x", 60)
	require.Equal(t, true, v["truncated"])
	require.Len(t, v["stdout"], 1<<20)
	gives("printf 'a\\377'", 0, "a\uFFFD")

	for _, command := range []string{"sleep 1000", "while :; do sleep 1; done", "while :; do :; done", "sh -c 'trap \"\" INT; sleep 1000; sleep 1000'"} {
		begin := time.Now()
		v = run(command, 0.5)
		require.Equal(t, []any{"timed_out", float64(124), false}, []any{v["reason"], v["exit_code"], v["session_ended"]}, "%s: %v", command, v)
		require.Less(t, time.Since(begin), time.Minute, command)
		gives("f a", 7, "f 1 a\n")
	}

	// Many in a row, which each take a moment.
	begin := time.Now()
	const many = 50
	for range many {
		gives("echo $A", 0, "1\n")
	}
	t.Logf("%d commands in a session, %s each", many, time.Since(begin)/many)

	v = run("exit 3", 60)
	require.Equal(t, []any{float64(3), true}, []any{v["exit_code"], v["session_ended"]})
	status, v = call("POST", at+"/exec", map[string]any{"command": "true"})
	require.Equal(t, http.StatusConflict, status, "%v", v)
	require.Contains(t, v["message"], "exit code 3")

	// A session ends with all that runs in it.
	_, v = call("POST", "/box/session", map[string]any{"session_id": "second"})
	at = "/box/session/" + v["session_id"].(string)
	run("sleep 1000 & echo $! >/workspace/pid", 60)
	status, v = call("DELETE", at, nil)
	require.Equal(t, []any{http.StatusOK, "TERMINATED"}, []any{status, v["state"]}, "%v", v)
	_, v = call("POST", "/execute?sandbox=box", map[string]any{"code": "kill -0 $(cat /workspace/pid)", "language": "bash"})
	require.NotEqual(t, float64(0), v["exit_code"], "%v", v)
}
