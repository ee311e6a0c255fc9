package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// Contexts in a sandbox, as people and agents have them: variables stay, output is apart, what runs too long is interrupted, what crashes takes
// nothing else with it, and a gateway that was killed is missed by nobody.
func TestContextsInASandbox(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs a sandbox")
	}
	s := stack.Up(t)
	config := filepath.Join(t.TempDir(), "none")
	run := func(args ...string) (code int, stdout, stderr string) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(stack.Bin(t), "sandtrail"), args...)
		cmd.Env = append(os.Environ(), "SANDTRAIL_API_URL=http://"+s.HTTP, "SANDTRAIL_ADDR="+s.GRPC, "SANDTRAIL_CONFIG="+config)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		_ = cmd.Run()
		return cmd.ProcessState.ExitCode(), out.String(), errs.String()
	}
	good := func(args ...string) string {
		t.Helper()
		code, out, errs := run(args...)
		require.Zero(t, code, "%v: %s %s", args, out, errs)
		return out
	}
	good("create", "box")
	require.Equal(t, "hello\n3\n", good("run", "box", "import os\nx = 1\nprint('hello')\nx + 2"))
	code, out, errs := run("run", "box", "import sys, subprocess\nos.write(1, b'raw\\n')\nos.system('echo shell; echo no >&2')\nsubprocess.run(['echo', 'child'])\nx / 0")
	require.Equal(t, []any{1, "raw\nshell\nchild\n"}, []any{code, out}, errs)
	require.Contains(t, errs, "no\nTraceback (most recent call last):\n  File \"<cell 2>\", line 5, in <module>\n    x / 0\n")
	require.Contains(t, errs, "ZeroDivisionError: division by zero")

	code, _, errs = run("run", "box", "--timeout", "1", "import time\ntime.sleep(600)")
	require.Equal(t, 1, code, errs)
	require.Contains(t, errs, "KeyboardInterrupt: the cell ran longer than 1 s")
	require.Equal(t, "1\n", good("run", "box", "x"))
	require.Equal(t, "5\n", good("run", "box", "import asyncio\nawait asyncio.sleep(0.01, 5)"))

	other := strings.TrimSpace(good("context", "create", "box", "--cwd", "/tmp"))
	require.Equal(t, "/tmp\n", good("run", "box", "--context", other, "import os\nprint(os.getcwd())"))
	for _, crash := range []string{"os._exit(7)", "import ctypes\nctypes.string_at(0)"} {
		code, _, errs = run("run", "box", "--context", other, crash)
		require.Equal(t, 1, code, errs)
		require.Contains(t, errs, "ContextCrashed: the interpreter ended with ")
		good("run", "box", "--context", other, "import os")
	}
	require.Equal(t, "1\n", good("run", "box", "x"), "the other context is as it was")

	var big struct {
		Stdout    string
		Truncated bool
		ContextID string `json:"context_id"`
	}
	require.NoError(t, json.Unmarshal([]byte(good("run", "box", "-o", "json", "print('a' * 5_000_000)")), &big))
	require.Equal(t, []any{1 << 20, true}, []any{len(big.Stdout), big.Truncated})

	// Everything that holds a gateway ends; the sandbox goes on, and the next gateway finds its contexts.
	s.Kill("up")
	s.Restart()
	require.Contains(t, good("context", "list", "box"), other)
	require.Equal(t, "1\n", good("run", "box", "x"))
	good("context", "restart", "box", big.ContextID)
	code, _, errs = run("run", "box", "x")
	require.Equal(t, 1, code)
	require.Contains(t, errs, "NameError")
	good("context", "rm", "box", other)
	require.NotContains(t, good("context", "list", "box"), other)

	good("stop", "box")
	code, _, errs = run("run", "box", "x")
	require.Equal(t, 241, code, errs)
	require.Contains(t, errs, "sandbox_stopped")
	good("start", "box")
	require.Equal(t, "2\n", good("run", "box", "1 + 1"))
	require.Equal(t, 1, strings.Count(good("context", "list", "box"), "RUNNING"))
	good("delete", "box")
}
