package app_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
	chunks "github.com/sandtrail/sandtrail/libs/transcript"
)

// protocols are one version with sessions and the first one without.
var protocols = map[string]string{"sessions": "2025-11-25", "stateless": "2026-07-28"}

// presenting sends a credential with every request of a client.
type presenting struct {
	auth string
	next http.RoundTripper
}

func (p presenting) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if p.auth != "" {
		r.Header.Set("Authorization", p.auth)
	}
	return p.next.RoundTrip(r)
}

// agent is an MCP client with a key.
type agent struct {
	*mcp.ClientSession
	t *testing.T

	mu   sync.Mutex
	news []*mcp.ProgressNotificationParams
}

func (w *web) agent(t *testing.T, version string) *agent {
	t.Helper()
	return agentAt(t, w.base+"/mcp", w.auth, version)
}

// agentAt is one of an endpoint.
func agentAt(t *testing.T, url, auth, version string) *agent {
	t.Helper()
	a := &agent{t: t}
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.news = append(a.news, r.Params)
		},
	})
	plain := &http.Transport{}
	var err error
	a.ClientSession, err = c.Connect(t.Context(), &mcp.StreamableClientTransport{
		Endpoint: url, HTTPClient: &http.Client{Transport: presenting{auth, plain}},
	}, &mcp.ClientSessionOptions{ProtocolVersion: version})
	require.NoError(t, err)
	require.Equal(t, version, a.InitializeResult().ProtocolVersion)
	t.Cleanup(func() {
		_ = a.Close() // the gateway may be gone
		plain.CloseIdleConnections()
	})
	return a
}

func (a *agent) told() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var b strings.Builder
	for _, n := range a.news {
		b.WriteString(n.Message)
	}
	return b.String()
}

// raw calls a tool with the token for progress.
func (a *agent) raw(ctx context.Context, tool string, args map[string]any) (*mcp.CallToolResult, error) {
	p := &mcp.CallToolParams{Name: tool, Arguments: args}
	p.SetProgressToken(ids.New())
	return a.CallTool(ctx, p)
}

// call calls a tool that succeeds. Its text is its structured content.
func (a *agent) call(tool string, args map[string]any) map[string]any {
	a.t.Helper()
	res, err := a.raw(a.t.Context(), tool, args)
	require.NoError(a.t, err)
	text := textOf(a.t, res)
	require.False(a.t, res.IsError, "%s", text)
	structured, err := json.Marshal(res.StructuredContent)
	require.NoError(a.t, err)
	require.JSONEq(a.t, text, string(structured))
	var v map[string]any
	require.NoError(a.t, json.Unmarshal([]byte(text), &v))
	return v
}

// refused calls a tool that fails, and gives the problem.
func (a *agent) refused(tool string, args map[string]any) map[string]any {
	a.t.Helper()
	res, err := a.raw(a.t.Context(), tool, args)
	require.NoError(a.t, err)
	require.True(a.t, res.IsError, "%s", textOf(a.t, res))
	return problemOf(a.t, res)
}

func problemOf(t *testing.T, res *mcp.CallToolResult) map[string]any {
	t.Helper()
	var v map[string]map[string]any
	require.NoError(t, json.Unmarshal([]byte(textOf(t, res)), &v))
	require.NotEmpty(t, v["error"]["message"])
	require.NotEmpty(t, v["error"]["correlation_id"])
	return v["error"]
}

func textOf(t *testing.T, res *mcp.CallToolResult) string {
	t.Helper()
	require.Len(t, res.Content, 1)
	text, ok := res.Content[0].(*mcp.TextContent)
	require.True(t, ok)
	return text.Text
}

func (a *agent) box() string {
	a.t.Helper()
	id, _ := a.call("create_sandbox", map[string]any{"cpus": 0.5, "memory": "256Mi", "timeout_seconds": 300})["sandbox_id"].(string)
	require.NotEmpty(a.t, id)
	return id
}

// both runs a test for each kind of the protocol.
func both(t *testing.T, test func(t *testing.T, w *web, a *agent)) {
	for name, version := range protocols {
		t.Run(name, func(t *testing.T) {
			w := newWeb(t)
			test(t, w, w.agent(t, version))
		})
	}
}

// echo writes what it was given and ends.
func echo(w *web) {
	w.peer.script("/bin/sh", func(x *execution) {
		x.write(chunks.Stdout, []byte("out: "+x.cmd.GetStart().GetSpec().GetArgs()[1]))
		x.write(chunks.Stderr, []byte("err"))
		x.complete(7)
	})
	w.peer.script("python3", func(x *execution) {
		x.write(chunks.Stdout, []byte{0xff, 0xfe})
		x.complete(0)
	})
}

func TestMCPEveryTool(t *testing.T) {
	both(t, func(t *testing.T, w *web, a *agent) {
		echo(w)
		box := a.box()
		x := a.call("run_command", map[string]any{"sandbox_id": box, "command": "ls 'a b'", "env": map[string]any{"A": "1"}})
		require.Equal(t, "exited", x["state"])
		require.InDelta(t, 7, x["exit_code"], 0)
		out, _ := x["stdout"].(map[string]any)
		require.Equal(t, "out: ls 'a b'", out["text"])
		require.Equal(t, "err", x["stderr"].(map[string]any)["text"])
		require.NotContains(t, out, "note")

		again := a.call("get_execution", map[string]any{"sandbox_id": box, "execution_id": x["execution_id"]})
		require.Equal(t, x["stdout"], again["stdout"])
		require.Equal(t, x["exit_code"], again["exit_code"])
		page := a.call("get_execution", map[string]any{"sandbox_id": box, "execution_id": x["execution_id"], "stdout_offset": 5, "max_bytes": 2})
		require.Equal(t, "ls", page["stdout"].(map[string]any)["text"])
		require.InDelta(t, 6, page["stdout"].(map[string]any)["omitted_bytes"], 0)

		p := a.call("run_python", map[string]any{"sandbox_id": box, "code": "print(1)"})
		require.Equal(t, map[string]any{"text": "//4=", "encoding": "base64", "offset": 0.0, "bytes": 2.0, "omitted_bytes": 0.0}, p["stdout"])

		wrote := a.call("write_file", map[string]any{"sandbox_id": box, "path": "f", "content": "grüße"})
		require.InDelta(t, 7, wrote["size"], 0)
		require.Len(t, wrote["sha256"], 64)
		read := a.call("read_file", map[string]any{"sandbox_id": box, "path": "f", "max_bytes": 3})
		require.Equal(t, "gr", read["content"], "a character is not cut in two")
		require.InDelta(t, 2, read["next_offset"], 0)
		read = a.call("read_file", map[string]any{"sandbox_id": box, "path": "f", "offset": 2})
		require.Equal(t, "üße", read["content"])
		require.Nil(t, read["next_offset"])
		list := a.call("list_files", map[string]any{"sandbox_id": box})
		require.Len(t, list["entries"], 1)

		require.Equal(t, "terminated", a.call("stop_sandbox", map[string]any{"sandbox_id": box})["status"])
		require.Equal(t, "terminated", a.call("stop_sandbox", map[string]any{"sandbox_id": box})["status"])
		require.Equal(t, "sandbox_destroyed", a.refused("run_command", map[string]any{"sandbox_id": box, "command": "true"})["reason"])
	})
}

func TestMCPSandboxesMayEndWhenNobodyUsesThem(t *testing.T) {
	both(t, func(t *testing.T, w *web, a *agent) {
		id, _ := a.call("create_sandbox", map[string]any{"idle_timeout_seconds": 600})["sandbox_id"].(string)
		require.Equal(t, json.Number("600"), w.send("GET", "/sandbox/"+id+"/status", "").is(t, 200)["idle_timeout_seconds"])
		before := w.commandsAbout(id)
		a.call("list_files", map[string]any{"sandbox_id": id})
		require.Equal(t, before+1, w.commandsAbout(id), "a call of a tool is use")
		free := a.box()
		require.NotContains(t, w.send("GET", "/sandbox/"+free+"/status", "").is(t, 200), "idle_timeout_seconds")
	})
}

// What clients show people before they let an agent call a tool.
func TestMCPToolsAreDescribed(t *testing.T) {
	w := newWeb(t)
	res, err := w.agent(t, protocols["stateless"]).ListTools(t.Context(), nil)
	require.NoError(t, err)
	hints := map[string][3]bool{}
	for _, tool := range res.Tools {
		require.NotEmpty(t, tool.Description)
		require.NotEmpty(t, tool.Annotations.Title)
		hints[tool.Name] = [3]bool{tool.Annotations.ReadOnlyHint, *tool.Annotations.DestructiveHint, tool.Annotations.IdempotentHint}
		in := at(tool.InputSchema)
		require.Equal(t, false, in["additionalProperties"], tool.Name)
		for name, p := range at(in, "properties") {
			require.NotEmpty(t, at(p)["description"], "%s.%s", tool.Name, name)
		}
		require.NotEmpty(t, at(tool.OutputSchema, "properties"), tool.Name)
	}
	require.Equal(t, map[string][3]bool{
		"create_sandbox": {}, "run_command": {false, true}, "run_python": {false, true}, "read_file": {true, false, true},
		"write_file": {false, true, true}, "list_files": {true, false, true}, "get_execution": {true, false, true},
		"cancel_execution": {false, true, true}, "stop_sandbox": {false, true, true},
	}, hints)
}

func TestMCPTellsHowACommandGoesOn(t *testing.T) {
	both(t, func(t *testing.T, w *web, a *agent) {
		release := make(chan struct{})
		w.peer.script("/bin/sh", func(x *execution) {
			x.write(chunks.Stdout, []byte("half way"))
			<-release
			x.write(chunks.Stdout, []byte(", done"))
			x.complete(0)
		})
		box := a.box()
		end := make(chan map[string]any, 1)
		go func() { end <- a.call("run_command", map[string]any{"sandbox_id": box, "command": "make"}) }()
		w.until(func() bool { return a.told() == "half way" })
		close(release)
		x := <-end
		require.Equal(t, "half way, done", x["stdout"].(map[string]any)["text"])
	})
}

// Output over what a result shows: beginning and end are there, and what lies between can be read, every byte.
func TestMCPOutputIsBounded(t *testing.T) {
	w := newWeb(t)
	a := w.agent(t, protocols["sessions"])
	var all strings.Builder
	w.peer.script("/bin/sh", func(x *execution) {
		for i := range 100 {
			part := strings.Repeat(string(rune('a'+i%26)), 2999) + "é"
			all.WriteString(part)
			x.write(chunks.Stdout, []byte(part))
		}
		x.complete(0)
	})
	box := a.box()
	x := a.call("run_command", map[string]any{"sandbox_id": box, "command": "long"})
	out, _ := x["stdout"].(map[string]any)
	text, tail := out["text"].(string), out["tail"].(string)
	require.Less(t, len(text)+len(tail), 70<<10)
	require.True(t, strings.HasPrefix(all.String(), text))
	require.True(t, strings.HasSuffix(all.String(), tail))
	require.Contains(t, out["note"], "get_execution with stdout_offset=")
	require.InDelta(t, all.Len(), out["bytes"], 0)
	require.InDelta(t, all.Len()-len(text)-len(tail), out["omitted_bytes"], 0)
	require.Less(t, len(a.told()), 100<<10)

	got := text
	for len(got) < all.Len() {
		page := a.call("get_execution", map[string]any{"sandbox_id": box, "execution_id": x["execution_id"], "stdout_offset": len(got), "max_bytes": 50_000})
		more, _ := page["stdout"].(map[string]any)["text"].(string)
		require.NotEmpty(t, more)
		got += more
	}
	require.Equal(t, all.String(), got)
	again := a.call("get_execution", map[string]any{"sandbox_id": box, "execution_id": x["execution_id"]})
	require.Equal(t, out, again["stdout"])
}

// Who cancels a call ends its command, and not only the wait for it.
func TestMCPCancellationCancelsTheCommand(t *testing.T) {
	both(t, func(t *testing.T, w *web, a *agent) {
		w.peer.script("/bin/sh", func(x *execution) { x.write(chunks.Stdout, []byte("begun")) })
		box := a.box()
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := a.raw(ctx, "run_command", map[string]any{"sandbox_id": box, "command": "for ever", "idempotency_key": "one"})
			failed <- err
		}()
		w.until(func() bool { return a.told() == "begun" })
		cancel()
		require.ErrorIs(t, <-failed, context.Canceled)
		w.until(func() bool {
			return w.send("GET", "/sandbox/"+box+"/executions?idempotency_key=one", "").is(t, 200)["state"] == "cancelled"
		})
		// The session goes on.
		require.Len(t, a.call("list_files", map[string]any{"sandbox_id": box})["entries"], 1)
	})
}

func TestMCPCommandsInTheBackground(t *testing.T) {
	w := newWeb(t)
	a := w.agent(t, protocols["sessions"])
	release := make(chan struct{})
	end := sync.OnceFunc(func() { close(release) })
	t.Cleanup(end)
	w.peer.script("/bin/sh", func(x *execution) {
		x.write(chunks.Stdout, []byte("so far"))
		<-release
		x.complete(0)
	})
	box := a.box()
	args := map[string]any{"sandbox_id": box, "command": "server", "background": true, "idempotency_key": "one"}
	x := a.call("run_command", args)
	require.Equal(t, "accepted", x["state"])
	require.Equal(t, x["execution_id"], a.call("run_command", args)["execution_id"])
	look := map[string]any{"sandbox_id": box, "execution_id": x["execution_id"]}
	w.until(func() bool {
		now := a.call("get_execution", look)
		return now["state"] == "running" && now["stdout"].(map[string]any)["text"] == "so far" && now["exit_code"] == nil
	})
	require.NoError(t, a.Close(), "its client goes, it stays")
	a = w.agent(t, protocols["sessions"])
	end()
	look["wait_seconds"] = 10
	require.Equal(t, "exited", a.call("get_execution", look)["state"])

	w.peer.script("/bin/sh", func(*execution) {})
	y := a.call("run_command", map[string]any{"sandbox_id": box, "command": "y", "background": true})
	ended := a.call("cancel_execution", map[string]any{"sandbox_id": box, "execution_id": y["execution_id"]})
	require.Equal(t, "cancelled", ended["state"])
}

// An error is the same problem that HTTP answers, under the names that its arguments have here.
func TestMCPErrors(t *testing.T) {
	both(t, func(t *testing.T, w *web, a *agent) {
		box := a.box()
		w.peer.script("/bin/sh", func(x *execution) { x.lose() })
		for _, c := range []struct {
			name, tool     string
			args           map[string]any
			reason, within string
		}{
			{"unknown sandbox", "run_command", map[string]any{"sandbox_id": ids.New(), "command": "true"}, "sandbox_not_found", ""},
			{"no uuid", "read_file", map[string]any{"sandbox_id": "x", "path": "f"}, "validation", "sandbox_id"},
			{"missing", "run_command", map[string]any{"sandbox_id": box}, "validation", "command"},
			{"unknown argument", "stop_sandbox", map[string]any{"sandbox_id": box, "surprise": 1}, "validation", "surprise"},
			{"type", "create_sandbox", map[string]any{"cpus": "many"}, "validation", "cpus"},
			{"bound", "create_sandbox", map[string]any{"timeout_seconds": 0}, "validation", "timeout_seconds"},
			{"idleness", "create_sandbox", map[string]any{"idle_timeout_seconds": 9}, "validation", "idle_timeout_seconds"},
			{"the API's rule", "run_command", map[string]any{"sandbox_id": box, "command": "true", "env": map[string]any{"a b": "1"}}, "validation", `env["a b"]`},
			{"the deployment's", "create_sandbox", map[string]any{"cpus": 900}, "validation", `"cpus"`},
			{"quantity", "create_sandbox", map[string]any{"memory": "much"}, "validation", `"memory"`},
			{"base64", "write_file", map[string]any{"sandbox_id": box, "path": "f", "content": "%", "encoding": "base64"}, "validation", `"content"`},
			{"a zero byte", "read_file", map[string]any{"sandbox_id": box, "path": "a\x00b"}, "validation", `"path"`},
		} {
			t.Run(c.name, func(t *testing.T) {
				p := a.refused(c.tool, c.args)
				require.Equal(t, c.reason, p["reason"])
				text, err := json.Marshal(p)
				require.NoError(t, err)
				require.Contains(t, strings.ReplaceAll(string(text), `\"`, `"`), c.within)
			})
		}
		x := a.call("run_command", map[string]any{"sandbox_id": box, "command": "true"})
		require.Equal(t, "unknown", x["state"], "nobody makes an outcome up")
		require.Nil(t, x["exit_code"])
		a.call("create_sandbox", map[string]any{"idempotency_key": "same"})
		require.Equal(t, "idempotency_mismatch", a.refused("create_sandbox", map[string]any{"idempotency_key": "same", "cpus": 1})["reason"])
	})
}

// The same keys and scopes as everywhere; another tenant's things are not there.
func TestMCPScopesAndTenants(t *testing.T) {
	both(t, func(t *testing.T, w *web, a *agent) {
		version := a.InitializeResult().ProtocolVersion
		box := a.box()
		calls := map[string]map[string]any{
			"create_sandbox": {}, "run_command": {"sandbox_id": box, "command": "true"}, "run_python": {"sandbox_id": box, "code": "1"},
			"read_file": {"sandbox_id": box, "path": "f"}, "write_file": {"sandbox_id": box, "path": "f", "content": ""},
			"list_files": {"sandbox_id": box}, "get_execution": {"sandbox_id": box, "execution_id": ids.New()},
			"cancel_execution": {"sandbox_id": box, "execution_id": ids.New()}, "stop_sandbox": {"sandbox_id": box},
		}
		looks := w.with("ApiKey " + mint(w.world, "acme", tenant.Inspect).Text)
		w.until(func() bool { return looks.send("GET", "/sandbox", "").status == 200 })
		viewer, bob := looks.agent(t, version), w.with("ApiKey "+secret("bob")).agent(t, version)
		for tool, args := range calls {
			want := "scope_missing"
			if tool == "get_execution" {
				want = "exec_not_found"
			}
			require.Equal(t, want, viewer.refused(tool, args)["reason"], tool)
			if tool != "create_sandbox" {
				require.Equal(t, "not_found", bob.refused(tool, args)["code"], tool)
			}
		}
		require.NotContains(t, w.logs.String(), secret("bob"))
		require.NotContains(t, everything(t, w.JS, topology.StreamEvents), secret("alice"))
	})
}
