package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// typescript gets the official client at the versions of its lock file, and gives the directory to run it in.
func typescript(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	from := filepath.Join(stack.Root(t), "tests/e2e/testdata/mcp")
	require.NoError(t, os.CopyFS(dir, os.DirFS(from)))
	cmd := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir
}

// agentRun is what the client saw, by step.
type agentRun map[string]json.RawMessage

func runAgent(t *testing.T, dir string, env ...string) agentRun {
	t.Helper()
	cmd := exec.Command("node", "client.mjs")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	t.Logf("%s", out)
	require.NoError(t, err, "%s", errs.String())
	run := agentRun{}
	for line := range bytes.Lines(out) {
		var step struct {
			Step  string
			Value json.RawMessage
		}
		require.NoError(t, json.Unmarshal(line, &step), "%s", line)
		run[step.Step] = step.Value
	}
	return run
}

// has checks parts of a step's value, by path.
func (r agentRun) has(t *testing.T, step string, want map[string]any) {
	t.Helper()
	var v any
	require.NoError(t, json.Unmarshal(r[step], &v), "step %s", step)
	for path, w := range want {
		at := v
		for p := range strings.SplitSeq(path, ".") {
			m, ok := at.(map[string]any)
			require.True(t, ok, "%s of %s", path, r[step])
			at = m[p]
		}
		require.EqualValues(t, w, at, "%s of %s: %s", path, step, r[step])
	}
}

// The official TypeScript client uses every tool against real sandboxes, over HTTP and over stdin and stdout, and validates what it gets
// against the tools' schemas.
func TestMCPWithTheOfficialClient(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs real sandboxes, and gets the client from npm")
	}
	dir := typescript(t)
	s := stack.Up(t)
	c := controller{s, t, "http://" + s.HTTP}
	var made map[string]any
	c.operate(&made, "tenant", "create", "acme")
	key := c.key("create,inspect,execute,files,stop").Key
	command, err := json.Marshal([]string{filepath.Join(stack.Bin(t), "sandtrail"), "mcp", "--grpc", s.GRPC})
	require.NoError(t, err)
	create := exec.CommandContext(t.Context(), filepath.Join(stack.Bin(t), "sandtrail"), "create", "box")
	create.Env = append(os.Environ(), "SANDTRAIL_API_URL="+c.url, "SANDTRAIL_API_KEY="+key, "SANDTRAIL_CONFIG="+filepath.Join(t.TempDir(), "none"))
	out, err := create.CombinedOutput()
	require.NoError(t, err, "%s", out)
	inside := []string{"cancel_execution", "get_execution", "list_files", "read_file", "run_command", "run_python", "write_file"}
	for name, env := range map[string][]string{
		"http":        {"MCP_URL=" + c.url + "/mcp", "MCP_KEY=" + key},
		"stdio":       {"MCP_COMMAND=" + string(command), "SANDTRAIL_API_KEY=" + key},
		"one sandbox": {"MCP_URL=" + c.url + "/api/v1/sandboxes/box/mcp", "MCP_KEY=" + key, "MCP_BOUND=yes"},
	} {
		t.Run(name, func(t *testing.T) {
			r := runAgent(t, dir, env...)
			tools := inside
			if name != "one sandbox" {
				tools = slices.Sorted(slices.Values(append([]string{"create_sandbox", "stop_sandbox"}, inside...)))
				r.has(t, "stop", map[string]any{"status": "terminated"})
				r.has(t, "after", map[string]any{"error.reason": "sandbox_destroyed"})
			}
			var offered []string
			require.NoError(t, json.Unmarshal(r["tools"], &offered))
			require.Equal(t, tools, offered)
			r.works(t)
		})
	}
}

// works checks what every endpoint does alike.
func (r agentRun) works(t *testing.T) {
	t.Helper()
	r.has(t, "server", map[string]any{"name": "sandtrail"})
	r.has(t, "write", map[string]any{"size": 8, "checked": true})
	r.has(t, "command", map[string]any{"state": "exited", "exit_code": 3, "stdout.text": "grüße\n", "stderr.text": "oops\n", "checked": true})
	r.has(t, "python", map[string]any{"exit_code": 0, "stdout.text": "45\n3\n"})
	r.has(t, "read", map[string]any{"content": "grüße\n", "encoding": "utf-8", "next_offset": nil})
	r.has(t, "slow", map[string]any{"stdout.text": "step 1\nstep 2\nstep 3\n"})
	r.has(t, "execution", map[string]any{"stdout.text": "step 1\nstep 2\nstep 3\n", "exit_code": 0})
	var news []struct {
		Progress float64
		Message  string
	}
	require.NoError(t, json.Unmarshal(r["progress"], &news))
	require.NotEmpty(t, news)
	require.Contains(t, news[0].Message, "step 1")
	for i := 1; i < len(news); i++ {
		require.Greater(t, news[i].Progress, news[i-1].Progress)
	}
	r.has(t, "long", map[string]any{"stdout.bytes": 1288895, "stdout.tail": "99998\n199999\n200000\n"})
	require.NotContains(t, string(r["cancelled"]), "answered")
	require.NotNil(t, r["gone"], "a cancelled call ends its command, to the last process")
	r.has(t, "refused", map[string]any{"error.reason": "path_escapes"})
}
