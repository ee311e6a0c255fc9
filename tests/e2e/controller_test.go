package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// controller is the HTTP API of a stack as users of the quickstart have it.
type controller struct {
	*stack.Stack
	t   *testing.T
	url string
}

// operate runs the CLI as the operator of the stack and reads what it prints as JSON.
func (c controller) operate(into any, args ...string) {
	c.t.Helper()
	cmd := exec.Command(filepath.Join(stack.Bin(c.t), "sandtrail"), append(args, "--output", "json")...)
	cmd.Env = append(os.Environ(), "SANDTRAIL_NATS="+c.NATS)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(c.t, err, "%s", errs.String())
	require.NoError(c.t, json.Unmarshal(out, into), "%s", out)
}

type apiKey struct {
	Key string `json:"key"`
	ID  string `json:"key_id"`
}

func (c controller) key(scopes string) (k apiKey) {
	c.t.Helper()
	c.operate(&k, "key", "create", "--tenant", "acme", "--scopes", scopes)
	require.NotEmpty(c.t, k.Key)
	return k
}

// smoke runs the quickstart's script with nothing but its three variables set, and returns its directory, what it printed and its exit code.
func (c controller) smoke(key, create string) (dir, out string, code int) {
	c.t.Helper()
	dir = c.t.TempDir()
	cmd := exec.Command("bash", filepath.Join(stack.Root(c.t), "scripts/sandbox-smoke.sh"))
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "SANDBOX_URL=" + c.url + "/api/v1", "STATESET_SANDBOX_API_KEY=" + key, "SANDBOX_CREATE_KEY=" + create,
	}
	printed, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil {
		require.ErrorAs(c.t, err, &exit)
		code = exit.ExitCode()
	}
	return dir, string(printed), code
}

func (c controller) read(dir, file string) string {
	c.t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, file))
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	require.NoError(c.t, err)
	return string(data)
}

// ask makes one call.
func (c controller) ask(key, method, path, body string) (status int, answer map[string]any) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.url+"/api/v1/sandbox"+path, strings.NewReader(body))
	require.NoError(c.t, err)
	req.Header.Set("Authorization", "ApiKey "+key)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(c.t, err)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	require.NoError(c.t, err)
	require.NoError(c.t, json.Unmarshal(data, &answer), "%s", data)
	return res.StatusCode, answer
}

func (c controller) until(done func() bool) {
	c.t.Helper()
	require.Eventually(c.t, done, time.Minute, 100*time.Millisecond)
}

// The quickstart of the HTTP API as it is written, its check of the teardown, and each row of its table of troubles that a whole
// installation can show.
func TestControllerQuickstart(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs real sandboxes and ClickHouse")
	}
	s := stack.Up(t)
	c := controller{s, t, "http://" + s.HTTP}
	var made map[string]any
	c.operate(&made, "tenant", "create", "acme")
	k := c.key("create,inspect,execute,stop")
	dir, out, code := c.smoke(k.Key, "smoke-1")
	t.Logf("%s", out)
	require.Zero(t, code, "%s\n%s%s", out, c.read(dir, "sandbox-created.json"), c.read(dir, "sandbox-execution.json"))
	id := strings.TrimSpace(c.read(dir, "sandbox-id.txt"))
	status, gone := c.ask(k.Key, "GET", "/"+id+"/status", "")
	require.Equal(t, 200, status)
	require.Equal(t, "terminated", gone["status"])
	// The receipt outlives the sandbox and can be found by the key alone.
	status, x := c.ask(k.Key, "GET", "/"+id+"/executions?idempotency_key=smoke-1-exec", "")
	require.Equal(t, 200, status)
	require.JSONEq(t, c.read(dir, "sandbox-execution.json"), toJSON(t, x))

	t.Run("401", func(t *testing.T) {
		dir, out, code := c.smoke("st_nobody", "smoke-2")
		require.Equal(t, 22, code, "%s", out)
		require.Contains(t, c.read(dir, "sandbox-created.json"), `"reason":"key_invalid"`)
	})
	t.Run("403", func(t *testing.T) {
		dir, out, code := c.smoke(c.key("inspect").Key, "smoke-3")
		require.Equal(t, 22, code, "%s", out)
		require.Contains(t, c.read(dir, "sandbox-created.json"), "scope")
		require.Contains(t, c.read(dir, "sandbox-created.json"), "create")
	})
	t.Run("creation rejected", func(t *testing.T) {
		status, problem := c.ask(k.Key, "POST", "/create", `{"isolation":"vm","memory":"1Mi"}`)
		require.Equal(t, 422, status)
		require.Contains(t, toJSON(t, problem), "container, gvisor")
		require.Contains(t, toJSON(t, problem), `"field":"memory"`)
	})
	t.Run("nonzero", func(t *testing.T) {
		_, made := c.ask(k.Key, "POST", "/create", `{"timeout_seconds":300}`)
		box, _ := made["sandbox_id"].(string)
		status, x := c.ask(k.Key, "POST", "/"+box+"/execute", `{"command":"exit 7"}`)
		require.Equal(t, 200, status)
		require.EqualValues(t, 7, x["exit_code"])

		// A stop that fails leaves the sandbox, which another key stops.
		mute := c.key("stop")
		var revoked []any
		c.operate(&revoked, "key", "revoke", mute.ID, "--tenant", "acme")
		c.until(func() bool { status, _ := c.ask(mute.Key, "POST", "/"+box+"/stop", ""); return status == 401 })
		_, still := c.ask(k.Key, "GET", "/"+box+"/status", "")
		require.Equal(t, "running", still["status"])
		status, stopped := c.ask(k.Key, "POST", "/"+box+"/stop", "")
		require.Equal(t, 200, status)
		require.Equal(t, true, stopped["success"])
	})
	t.Run("lifetime", func(t *testing.T) {
		_, made := c.ask(k.Key, "POST", "/create", `{"timeout_seconds":5}`)
		box, _ := made["sandbox_id"].(string)
		c.until(func() bool {
			_, now := c.ask(k.Key, "GET", "/"+box+"/status", "")
			return now["status"] == "terminated"
		})
	})
}

func toJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return string(data)
}
