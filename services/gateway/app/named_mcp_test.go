package app_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/tenant"
	chunks "github.com/sandtrail/sandtrail/libs/transcript"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// inside is an agent at a sandbox's own endpoint.
func (b *boxes) inside(t *testing.T, name, key, version string) *agent {
	t.Helper()
	return agentAt(t, b.base+"/api/v1/sandboxes/"+name+"/mcp", "Bearer "+key, version)
}

// A sandbox's own endpoint has the tools of /mcp that do something in one, without the argument that names it.
func TestToolsOfOneSandbox(t *testing.T) {
	for name, version := range protocols {
		t.Run(name, func(t *testing.T) {
			w := newBoxes(t, twoTenants).with("Authorization: Bearer " + secret("alice"))
			id := w.made("demo")["id"]
			other, _ := w.made("other")["id"].(string)
			w.peer.script("/bin/sh", func(x *execution) {
				x.write(chunks.Stdout, []byte("in "+x.agg.Sandbox))
				x.complete(7)
			})
			w.peer.script("python3", func(x *execution) { x.complete(0) })
			a := w.inside(t, "demo", secret("alice"), version)
			all, err := a.ListTools(t.Context(), nil)
			require.NoError(t, err)
			var tools []string
			for _, tool := range all.Tools {
				tools = append(tools, tool.Name)
				require.NotContains(t, at(tool.InputSchema, "properties"), "sandbox_id", tool.Name)
				require.NotContains(t, fmt.Sprint(at(tool.InputSchema)["required"]), "sandbox_id", tool.Name)
			}
			require.ElementsMatch(t, []string{
				"run_command", "run_python", "read_file", "write_file", "list_files", "get_execution", "cancel_execution",
			}, tools)

			x := a.call("run_command", map[string]any{"command": "true"})
			require.Equal(t, []any{id, "exited", "in " + id.(string)}, []any{x["sandbox_id"], x["state"], x["stdout"].(map[string]any)["text"]})
			require.Equal(t, x["stdout"], a.call("get_execution", map[string]any{"execution_id": x["execution_id"]})["stdout"])
			require.InDelta(t, 0, a.call("run_python", map[string]any{"code": "1"})["exit_code"], 0)
			a.call("write_file", map[string]any{"path": "f", "content": "text"})
			require.Equal(t, "text", a.call("read_file", map[string]any{"path": "f"})["content"])
			require.Len(t, a.call("list_files", nil)["entries"], 1)
			require.Equal(t, "validation", a.refused("run_command", map[string]any{"command": "true", "sandbox_id": other})["reason"])
			_, err = a.raw(t.Context(), "stop_sandbox", nil)
			require.Error(t, err)

			// An id is a name too; an execution of another sandbox is not there.
			elsewhere := w.inside(t, other, secret("alice"), version)
			require.Equal(t, "in "+other, elsewhere.call("run_command", map[string]any{"command": "true"})["stdout"].(map[string]any)["text"])
			require.Equal(t, "exec_not_found", elsewhere.refused("get_execution", map[string]any{"execution_id": x["execution_id"]})["reason"])

			looks := mint(w.world, "acme", tenant.Inspect).Text
			w.until(func() bool {
				return w.with("Authorization: Bearer "+looks).send("GET", "/sandboxes/demo", nil).status == 200
			})
			viewer := w.inside(t, "demo", looks, version)
			require.Equal(t, "scope_missing", viewer.refused("run_command", map[string]any{"command": "true"})["reason"])
			require.Equal(t, "scope_missing", viewer.refused("list_files", nil)["reason"])
			require.Equal(t, "exited", viewer.call("get_execution", map[string]any{"execution_id": x["execution_id"]})["state"])
		})
	}
}

func TestToolsOfOneSandboxTellProgressAndCancel(t *testing.T) {
	w := newBoxes(t, twoTenants).with("Authorization: Bearer " + secret("alice"))
	w.made("demo")
	w.peer.script("/bin/sh", func(x *execution) { x.write(chunks.Stdout, []byte("begun")) })
	a := w.inside(t, "demo", secret("alice"), protocols["sessions"])
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := a.raw(ctx, "run_command", map[string]any{"command": "for ever"})
		failed <- err
	}()
	w.until(func() bool { return a.told() == "begun" })
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
	w.until(func() bool {
		return strings.Contains(string(w.send("GET", "/sandboxes/demo/logs", nil).body), "cancelled")
	})
}

// What is not the caller's is not there before a word of MCP is spoken, and a session is of no use at another sandbox's endpoint.
func TestEndpointsOfSandboxesAreTheirTenants(t *testing.T) {
	w := newBoxes(t, twoTenants)
	alice, bob := w.with("Authorization: Bearer "+secret("alice")), w.with("X-Sandrpod-Token: "+secret("bob"))
	id, _ := alice.made("demo")["id"].(string)
	alice.made("second")
	post := func(b *boxes, name, body string, headers ...string) answer {
		headers = append(headers, "Content-Type: application/json", "Accept: application/json, text/event-stream")
		return b.send("POST", "/sandboxes/"+name+"/mcp", strings.NewReader(body), headers...)
	}
	for _, unknown := range []string{id, "demo", "nobody", ids.New()} {
		post(bob, unknown, initialize).refused(t, 404, "sandbox_not_found")
		bob.send("GET", "/sandboxes/"+unknown+"/mcp", nil).refused(t, 404, "sandbox_not_found")
		bob.send("DELETE", "/sandboxes/"+unknown+"/mcp", nil).refused(t, 404, "sandbox_not_found")
	}
	post(w, "demo", initialize).refused(t, 401, "key_missing")
	post(alice, "demo", initialize, "Origin: https://evil.example").refused(t, 403, "origin_not_allowed")
	alice.send("PUT", "/sandboxes/demo/mcp", nil).refused(t, 405, "method_not_allowed")
	alice.send("GET", "/sandboxes/demo/mcp/below", nil).refused(t, 404, "route_not_found")

	begun := post(alice, "demo", initialize)
	require.Equal(t, 200, begun.status, "%s", begun.body)
	require.Equal(t, id, begun.header.Get("Sandtrail-Sandbox-Id"))
	session := "Mcp-Session-Id: " + begun.header.Get("Mcp-Session-Id")
	require.Equal(t, 200, post(alice, "demo", listTools, session).status)
	require.Equal(t, 200, post(alice, id, listTools, session).status, "the same sandbox by its id")
	alice.find("acme", func(c *eventsv1.CallEnded) bool {
		return c.GetApi() == "mcp" && c.GetAction() == "Message" && c.GetSandboxId() == id && c.GetOutcome() == "ok"
	})
	post(alice, "second", listTools, session).refused(t, 404, "session_not_found")
	require.Equal(t, "TERMINATED", alice.send("DELETE", "/sandboxes/demo", nil).is(t, 200)["state"])
	alice.made("demo")
	post(alice, "demo", listTools, session).refused(t, 404, "session_not_found")
}

// Where no credential is asked for, the sandbox is that of the caller's tenant.
func TestToolsOfOneSandboxWithoutACredential(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("demo")
	w.peer.script("/bin/sh", func(x *execution) { x.complete(3) })
	a := agentAt(t, w.base+"/api/v1/sandboxes/demo/mcp", "", protocols["sessions"])
	require.InDelta(t, 3, a.call("run_command", map[string]any{"command": "true"})["exit_code"], 0)
}
