package e2e

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// Directories of a real sandbox are watched over HTTP and by the command line: what programs in it change, and what is uploaded.
func TestDirectoriesAreWatched(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs a sandbox")
	}
	s := stack.Up(t)
	run := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), filepath.Join(stack.Bin(t), "sandtrail"), args...)
		cmd.Env = append(os.Environ(), "SANDTRAIL_API_URL=http://"+s.HTTP, "SANDTRAIL_CONFIG="+filepath.Join(t.TempDir(), "none"))
		return cmd
	}
	does := func(args ...string) {
		out, err := run(args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	does("create", "box")
	does("fs", "mkdir", "box", "src/deep")

	at := "http://" + s.HTTP + "/api/v1/sandboxes/box/toolbox/watch/"
	ask := func(method, route, body string) map[string]any {
		req, err := http.NewRequestWithContext(t.Context(), method, at+route, strings.NewReader(body))
		require.NoError(t, err)
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		var v map[string]any
		require.NoError(t, json.NewDecoder(res.Body).Decode(&v))
		require.Equal(t, http.StatusOK, res.StatusCode, "%v", v)
		return v
	}
	id, _ := ask("POST", "create", `{"path": "src", "recursive": true}`)["watcher_id"].(string)
	var seen []string
	until := func(want ...string) {
		t.Helper()
		require.Eventually(t, func() bool {
			for _, e := range ask("GET", "events?id="+id, "")["events"].([]any) {
				e := e.(map[string]any)
				seen = append(seen, e["type"].(string)+" "+e["name"].(string))
			}
			return !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(seen, w) })
		}, time.Minute, 50*time.Millisecond, "%v of %v", want, &seen)
	}
	does("execute", "box", "cd src; echo x > deep/f; mv deep/f g; chmod 600 g; rm g")
	until("create deep/f", "rename deep/f", "create g", "chmod g", "remove g")
	does("fs", "write", "box", "src/deep/up", "text")
	until("create deep/up")
	require.NotContains(t, strings.Join(seen, "\n"), ".sandtrail")
	require.Equal(t, true, ask("POST", "remove", `{"id": "`+id+`"}`)["success"])

	cmd := run("fs", "watch", "box", "/workspace/src", "--recursive", "--output", "json")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := make(chan string, 64)
	go func() {
		defer close(lines)
		for all := bufio.NewScanner(out); all.Scan(); {
			lines <- all.Text()
		}
	}()
	first := ""
	for deadline := time.Now().Add(time.Minute); first == "" && time.Now().Before(deadline); {
		does("execute", "box", "touch src/again") // it may not watch yet
		select {
		case first = <-lines:
		case <-time.After(time.Second):
		}
	}
	require.Contains(t, first, `"name":"again"`)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	for range lines {
	}
	_ = cmd.Wait()
	require.Equal(t, 245, cmd.ProcessState.ExitCode())
	require.Eventually(t, func() bool {
		left, err := run("execute", "box", "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; done 2>/dev/null | grep -c '[i]nit watch'").Output()
		return err != nil && strings.TrimSpace(string(left)) == "0"
	}, time.Minute, 100*time.Millisecond, "it takes its watcher along")
}
