package app_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/tenant"
	chunks "github.com/sandtrail/sandtrail/libs/transcript"
	"github.com/sandtrail/sandtrail/services/gateway/app"
)

// post sends one message as a client would, with more headers `Name: value`.
func (w *web) post(t *testing.T, method, body string, headers ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, w.base+"/mcp", strings.NewReader(body))
	require.NoError(t, err)
	if w.auth != "" {
		req.Header.Set("Authorization", w.auth)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NotEmpty(t, res.Header.Get("X-Correlation-Id"))
	return answer{status: res.StatusCode, header: res.Header, body: data}
}

const (
	initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	listTools  = `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`
)

func (w *web) session(t *testing.T) string {
	t.Helper()
	a := w.post(t, "POST", initialize)
	require.Equal(t, 200, a.status, "%s", a.body)
	id := a.header.Get("Mcp-Session-Id")
	require.NotEmpty(t, id)
	return "Mcp-Session-Id: " + id
}

// A session is of no use to whoever does not have the credential that opened it, and ends when its client says so.
func TestMCPSessionsBelongToTheirKey(t *testing.T) {
	w := newWeb(t)
	s := w.session(t)
	require.Equal(t, 200, w.post(t, "POST", listTools, s).status)
	mate := w.with("ApiKey " + mint(w.world, "acme", tenant.All).Text)
	w.until(func() bool { return mate.send("GET", "/sandbox", "").status == 200 })
	for name, other := range map[string]*web{"another tenant": w.with("ApiKey " + secret("bob")), "another key of the tenant": mate} {
		for _, method := range []string{"POST", "GET", "DELETE"} {
			other.post(t, method, listTools, s).problem(t, 404, "session_not_found")
			require.Equal(t, 200, w.post(t, "POST", listTools, s).status, name)
		}
	}
	w.with("").post(t, "POST", listTools, s).problem(t, 401, "key_missing")
	w.with("ApiKey nobody").post(t, "POST", initialize).problem(t, 401, "key_invalid")
	require.Equal(t, 204, w.post(t, "DELETE", "", s).status)
	w.post(t, "POST", listTools, s).problem(t, 404, "session_not_found")
}

// Bad requests have the API's own problems, and leave no session.
func TestMCPBadRequests(t *testing.T) {
	w := newWeb(t, func(c *app.Config) { c.CORSOrigins = []string{"https://agents.example"} })
	w.post(t, "POST", initialize, "Accept: application/json").problem(t, 422, "validation", "accept")
	w.post(t, "POST", initialize, "Content-Type: text/plain").problem(t, 415, "unsupported_media_type")
	w.post(t, "POST", initialize, "Origin: https://evil.example").problem(t, 403, "origin_not_allowed")
	require.Equal(t, 200, w.post(t, "POST", initialize, "Origin: https://agents.example").status)
	w.post(t, "PUT", initialize).problem(t, 405, "method_not_allowed")
	w.post(t, "GET", "").problem(t, 422, "validation", "mcp-session-id")
	w.post(t, "POST", listTools, "Mcp-Session-Id: nobody").problem(t, 404, "session_not_found")
	w.post(t, "POST", strings.Repeat(" ", 9<<20)).problem(t, 413, "too_large")
	for _, body := range []string{``, `{`, `[]`, `{"jsonrpc":"2.0","id":1,"method":"no/such"}`} {
		a := w.post(t, "POST", body)
		require.Equal(t, 400, a.status, "%q: %s", body, a.body)
	}
	w.post(t, "POST", listTools) // without a session before it
	require.Equal(t, "1", w.metric(t, "sandtrail_mcp_sessions"), "that of the one that initialized")
}

// metric is the value of a metric without labels.
func (w *web) metric(t *testing.T, name string) string {
	t.Helper()
	res, err := http.Get(w.base + "/metrics")
	require.NoError(t, err)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(rest)
		}
	}
	require.Fail(t, "no such metric", name)
	return ""
}

// One credential does not fill the gateway with sessions: its oldest idle one goes.
func TestMCPSessionsAreBounded(t *testing.T) {
	w := newWeb(t)
	first := w.session(t)
	for range 64 {
		w.session(t)
	}
	w.post(t, "POST", listTools, first).problem(t, 404, "session_not_found")
	require.Equal(t, "64", w.metric(t, "sandtrail_mcp_sessions"))
	w.with("ApiKey " + secret("bob")).session(t)
}

// A key that is revoked ends the calls that it made.
func TestMCPACallEndsWithItsKey(t *testing.T) {
	both(t, func(t *testing.T, w *web, a *agent) {
		box := a.box()
		w.peer.script("/bin/sh", func(x *execution) { x.write(chunks.Stdout, []byte("begun")) })
		s := mint(w.world, "acme", tenant.All)
		mine := w.with("ApiKey " + s.Text)
		w.until(func() bool { return mine.send("GET", "/sandbox", "").status == 200 })
		m := mine.agent(t, a.InitializeResult().ProtocolVersion)
		end := make(chan map[string]any, 1)
		go func() { end <- m.refused("run_command", map[string]any{"sandbox_id": box, "command": "x"}) }()
		w.until(func() bool { return m.told() == "begun" })
		administer(w.world, "acme", tenant.RevokeKeys{IDs: []string{s.ID}, At: now()})
		select {
		case p := <-end:
			require.Equal(t, "key_invalid", p["reason"])
		case <-time.After(2 * time.Second):
			require.Fail(t, "the call goes on without its key")
		}
		_, err := m.ListTools(t.Context(), nil)
		require.Error(t, err)
	})
}

// Nobody takes the silence of a long command for an end.
func TestMCPSilentStreamsAreKeptOpen(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	release := make(chan struct{})
	w.peer.script("/bin/sh", func(x *execution) {
		<-release
		x.complete(0)
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	body := `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run_command","arguments":{"sandbox_id":"` + box + `","command":"x"}}}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.base+"/mcp", strings.NewReader(body))
	require.NoError(t, err)
	_, session, _ := strings.Cut(w.session(t), ": ")
	for name, value := range map[string]string{
		"Authorization": w.auth, "Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Session-Id": session,
	} {
		req.Header.Set(name, value)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, "text/event-stream", res.Header.Get("Content-Type"))
	comment := make([]byte, 3)
	for range 3 {
		_, err = io.ReadFull(res.Body, comment)
		require.NoError(t, err)
		require.Equal(t, ":\n\n", string(comment))
	}
	close(release)
	rest, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Contains(t, string(rest), `"exit_code":0`)
}
