package app_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/services/gateway/app"
)

// Every body that is wrong is refused with the names of all fields that are, and nothing is done.
func TestHTTPBodiesThatAreWrong(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	before := w.peer.count("cmd.")
	create, execute := "/sandbox/create", "/sandbox/"+box+"/execute"
	for _, c := range []struct {
		path, body string
		status     int
		reason     string
		fields     []string
	}{
		{create, `{"desktop_os":"windows"}`, 422, "validation", []string{"desktop_os"}},
		{
			create, `{"desktop_os":7,"cpus":true,"memory":1,"isolation":[],"timeout_seconds":"300","image":{},"env":[]}`, 422, "validation",
			[]string{"desktop_os", "cpus", "memory", "isolation", "timeout_seconds", "image", "env"},
		},
		{create, `{"cpus":"0"}`, 422, "validation", []string{"cpus"}},
		{create, `{"cpus":-1}`, 422, "validation", []string{"cpus"}},
		{create, `{"cpus":"1e3"}`, 422, "validation", []string{"cpus"}},
		{create, `{"cpus":0.0001}`, 422, "validation", []string{"cpus"}},
		{create, `{"cpus":"65"}`, 422, "validation", []string{"cpus"}},
		{create, `{"cpus":"999999"}`, 422, "validation", []string{"cpus"}},
		{create, `{"memory":"1Mi"}`, 422, "validation", []string{"memory"}},
		{create, `{"memory":"lots"}`, 422, "validation", []string{"memory"}},
		{create, `{"memory":"100Ti"}`, 422, "validation", []string{"memory"}},
		{create, `{"timeout_seconds":0}`, 422, "validation", []string{"timeout_seconds"}},
		{create, `{"timeout_seconds":1.5}`, 422, "validation", []string{"timeout_seconds"}},
		{create, `{"timeout_seconds":99999999}`, 422, "validation", []string{"timeout_seconds"}},
		{create, `{"timeout_seconds":99999999999999999999}`, 422, "validation", []string{"timeout_seconds"}},
		{create, `{"isolation":"vm"}`, 422, "validation", []string{"isolation"}},
		{create, `{"image":""}`, 422, "validation", []string{"image"}},
		{create, `{"image":"` + strings.Repeat("i", 513) + `"}`, 422, "validation", []string{"image"}},
		{create, `{"image":"a\u0000b"}`, 422, "validation", []string{"image"}},
		{create, `{"env":{"A":1}}`, 422, "validation", []string{`env["A"]`}},
		{create, `{"env":{"a":"1"}}`, 422, "validation", []string{`env["a"]`}},
		{create, `{"env":{"A":"1","A":"2"}}`, 422, "validation", []string{`env["A"]`}},
		{create, `{"env":{"A":"` + strings.Repeat("v", 4097) + `"}}`, 422, "validation", []string{`env["A"]`}},
		{create, `{"surprise":1,"CPUS":"1"}`, 422, "validation", []string{"surprise", "CPUS"}},
		{create, `{"cpus":"1","cpus":"1"}`, 422, "validation", []string{"cpus"}},
		{create, ``, 415, "unsupported_media_type", nil},
		{create, `[]`, 400, "malformed_request", nil},
		{create, `null`, 400, "malformed_request", nil},
		{create, `{"cpus":`, 400, "malformed_request", nil},
		{create, `{} {}`, 400, "malformed_request", nil},
		{create, "{\"image\":\"\xff\"}", 400, "malformed_request", nil},
		{create, `{"image":"` + strings.Repeat("x", 4<<20) + `"}`, 413, "too_large", nil},
		{execute, `{}`, 422, "validation", []string{"command"}},
		{execute, `{"command":[]}`, 422, "validation", []string{"command"}},
		{execute, `{"command":""}`, 422, "validation", []string{"command"}},
		{execute, `{"command":[""]}`, 422, "validation", []string{"command"}},
		{execute, `{"command":["a",null,7]}`, 422, "validation", []string{"command[1]", "command[2]"}},
		{execute, `{"command":["a\u0000"]}`, 422, "validation", []string{"command"}},
		{execute, `{"command":["a"],"timeout":0}`, 422, "validation", []string{"timeout"}},
		{execute, `{"command":["a"],"timeout":"10"}`, 422, "validation", []string{"timeout"}},
		{execute, `{"command":["a"],"timeout":9000000000000}`, 422, "validation", []string{"timeout"}},
		{execute, `{"command":["a"],"working_dir":7,"stdin":7,"stream":"yes"}`, 422, "validation", []string{"working_dir", "stdin", "stream"}},
		{execute, `{"command":["a"],"stdin":"` + strings.Repeat("x", 512<<10+1) + `"}`, 422, "validation", []string{"stdin"}},
		{execute, `{"command":["a"],"detached":true}`, 422, "validation", []string{"detached"}},
	} {
		t.Run(fmt.Sprintf("%.60s", c.body), func(t *testing.T) {
			w.send("POST", c.path, c.body, "Idempotency-Key: "+ids.New()).problem(t, c.status, c.reason, c.fields...)
		})
	}
	require.Equal(t, before, w.peer.count("cmd."), "nothing was asked for")
}

func TestHTTPHeadersAndParametersThatAreWrong(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	execute := "/sandbox/" + box + "/execute"
	for name, key := range map[string]string{
		"empty": "", "space": "a b", "not ASCII": "schlüssel", "201": strings.Repeat("k", 201), "tab": "a\tb",
	} {
		w.send("POST", "/sandbox/create", `{}`, "Idempotency-Key: "+key).problem(t, 422, "validation", "idempotency-key")
		require.NotEmpty(t, name)
	}
	for _, key := range []string{"k", strings.Repeat("k", 200)} {
		w.send("POST", "/sandbox/create", `{}`, "Idempotency-Key: "+key).is(t, 201)
	}
	w.send("POST", execute, `{"command":["true"]}`, "Idempotency-Key: a", "Idempotency-Key: a").problem(t, 422, "validation", "idempotency-key")
	for _, media := range []string{"text/plain", "application/x-www-form-urlencoded", "application/json; charset", ""} {
		w.send("POST", execute, `{"command":["true"]}`, "Content-Type: "+media).problem(t, 415, "unsupported_media_type")
	}
	w.send("POST", execute, `{"command":["true"]}`, "Content-Type: application/json; charset=utf-8").is(t, 200)
	for query, field := range map[string]string{
		"limit=0": "limit", "limit=201": "limit", "limit=x": "limit", "limit=1&limit=2": "limit", "cursor=nonsense": "cursor", "page=1": "page", "a;b": "query",
	} {
		w.send("GET", "/sandbox?"+query, "").problem(t, 422, "validation", field)
	}
	w.send("POST", "/sandbox/"+box+"/stop", `{"force":true}`).problem(t, 422, "validation", "force")
	w.send("GET", "/sandbox/"+box+"/executions", "").problem(t, 422, "validation", "idempotency_key")
}

func TestHTTPPathsThatAreNone(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	for _, id := range []string{ids.New(), "nonsense", "..%2f..", strings.Repeat("a", 300)} {
		w.send("GET", "/sandbox/"+id+"/status", "").problem(t, 404, "sandbox_not_found")
		w.send("POST", "/sandbox/"+id+"/stop", "").problem(t, 404, "sandbox_not_found")
		w.send("POST", "/sandbox/"+id+"/execute", `{"command":["true"]}`).problem(t, 404, "sandbox_not_found")
		w.send("GET", "/sandbox/"+box+"/executions/"+id, "").problem(t, 404, "exec_not_found")
	}
	w.send("GET", "/nothing", "").problem(t, 404, "route_not_found")
	a := w.send("PATCH", "/sandbox/"+box, "")
	a.problem(t, 405, "method_not_allowed")
	require.Equal(t, "DELETE, GET", a.header.Get("Allow"))
	w.send("GET", "/sandbox/"+box+"/stop", "").problem(t, 405, "method_not_allowed")
}

// Whose credential is none, or of the wrong kind, learns nothing; whose has not the scope is told which it needs.
func TestHTTPCredentials(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	for name, auth := range map[string]string{
		"missing": "", "wrong": "ApiKey nobody", "a key behind Bearer": "Bearer " + secret("alice"), "bare": secret("alice"), "empty": "ApiKey ",
		"expired": "ApiKey " + secret("expired"), "a JWT behind ApiKey": "ApiKey eyJhbGciOiJub25lIn0.e30.", "a JWT": "Bearer eyJhbGciOiJub25lIn0.e30.",
	} {
		reason := "key_invalid"
		if auth == "" {
			reason = "key_missing"
		}
		a := w.with(auth).send("GET", "/sandbox/"+box+"/status", "")
		a.problem(t, 401, reason)
		require.NotEmpty(t, a.header.Get("WWW-Authenticate"), name)
		w.with(auth).send("POST", "/sandbox/create", `{"nonsense":1}`).problem(t, 401, reason)
	}
	w.with(w.auth).send("GET", "/sandbox", "", "Authorization: "+w.auth).problem(t, 401, "key_invalid")
	bob := w.with("ApiKey " + secret("bob"))
	theirs := bob.send("GET", "/sandbox/"+box+"/status", "")
	theirs.problem(t, 404, "sandbox_not_found")
	require.NotContains(t, string(bob.send("GET", "/sandbox", "").body), box)
	bob.send("POST", "/sandbox/"+box+"/execute", `{"command":["true"]}`).problem(t, 404, "sandbox_not_found")
	bob.send("POST", "/sandbox/"+box+"/stop", "").problem(t, 404, "sandbox_not_found")
	require.NotContains(t, w.logs.String(), secret("alice"))
}

func TestHTTPInDevelopmentModeNeedsAKeyToo(t *testing.T) {
	w := newWorld(t, nil)
	s := mint(w, "acme", tenant.All)
	c := &web{world: w, base: "http://" + w.app.HTTP(), spec: newSpec(t, "http://"+w.app.HTTP())}
	c.send("POST", "/sandbox/create", `{}`).problem(t, 401, "key_missing")
	c.auth = "ApiKey " + s.Text
	w.until(func() bool { return c.send("GET", "/sandbox", "").status == 200 })
	c.box()
}

func TestHTTPCrossOrigin(t *testing.T) {
	w := newWeb(t)
	preflight := []string{"Origin: https://app.example", "Access-Control-Request-Method: POST"}
	closed := w.send("OPTIONS", "/sandbox/create", "", preflight...)
	require.Equal(t, 405, closed.status)
	require.Empty(t, closed.header.Get("Access-Control-Allow-Origin"))
	open := newWeb(t, func(c *app.Config) { c.CORSOrigins = []string{"https://app.example"} })
	req, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, open.base+"/api/v1/sandbox/create", http.NoBody)
	require.NoError(t, err)
	req.Header.Set("Origin", "https://app.example")
	req.Header.Set("Access-Control-Request-Method", "POST")
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, 204, res.StatusCode)
	require.Equal(t, "https://app.example", res.Header.Get("Access-Control-Allow-Origin"))
	require.Contains(t, res.Header.Get("Access-Control-Allow-Headers"), "Idempotency-Key")
	require.Equal(t, "https://app.example", open.send("GET", "/sandbox", "", preflight[0]).header.Get("Access-Control-Allow-Origin"))
	require.Empty(t, open.send("GET", "/sandbox", "", "Origin: https://evil.example").header.Get("Access-Control-Allow-Origin"))
}

// What two readers could take for different requests is refused, and what comes behind it on the connection is no request.
func TestHTTPSmugglingShapes(t *testing.T) {
	w := newWeb(t)
	before := w.peer.count("cmd.")
	hidden := "POST /api/v1/sandbox/create HTTP/1.1\r\nHost: h\r\nAuthorization: " + w.auth + "\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
	head := "POST /api/v1/sandbox/create HTTP/1.1\r\nHost: h\r\nAuthorization: " + w.auth + "\r\nContent-Type: application/json\r\n"
	for name, raw := range map[string]string{
		"two lengths":      head + "Content-Length: 0\r\nContent-Length: 2\r\n\r\n" + hidden,
		"unknown coding":   head + "Transfer-Encoding: x\r\n\r\n" + hidden,
		"two codings":      head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + hidden,
		"space in a name":  head + "Content-Length : 0\r\n\r\n" + hidden,
		"bare chunk sizes": head + "Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n" + hidden,
		"no host":          "GET /api/v1/sandbox HTTP/1.1\r\n\r\n",
		"sign in a length": head + "Content-Length: +2\r\n\r\n{}",
	} {
		conn, err := net.Dial("tcp", w.app.HTTP())
		require.NoError(t, err)
		conn.SetDeadline(time.Now().Add(patience))
		_, err = io.WriteString(conn, raw)
		require.NoError(t, err)
		answers, _ := io.ReadAll(conn) // to the end, at which the server closes
		require.NoError(t, conn.Close())
		require.Equal(t, 1, strings.Count(string(answers), "HTTP/1.1 "), "%s: %s", name, answers)
		require.Regexp(t, `^HTTP/1\.1 (400|501) `, string(answers), name)
	}
	require.Equal(t, before, w.peer.count("cmd."))
}

// A body that stops half way is refused once its sender is gone, or has had its time; nothing of it is done.
func TestHTTPBodyThatStopsHalfWay(t *testing.T) {
	w := newWeb(t)
	before := w.peer.count("cmd.")
	conn, err := net.Dial("tcp", w.app.HTTP())
	require.NoError(t, err)
	conn.SetDeadline(time.Now().Add(patience))
	_, err = io.WriteString(conn, "POST /api/v1/sandbox/create HTTP/1.1\r\nHost: h\r\nAuthorization: "+w.auth+
		"\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{\"cpus\":")
	require.NoError(t, err)
	tcp, ok := conn.(*net.TCPConn)
	require.True(t, ok)
	require.NoError(t, tcp.CloseWrite())
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.Equal(t, 400, res.StatusCode)
	require.NoError(t, res.Body.Close())
	require.NoError(t, conn.Close())
	require.Equal(t, before, w.peer.count("cmd."))
}

// Connections that send nothing are closed, and do not keep others out meanwhile.
func TestHTTPIdleConnections(t *testing.T) {
	w := newWeb(t)
	const n = 2000
	conns := make([]net.Conn, n)
	for i := range conns {
		c, err := net.Dial("tcp", w.app.HTTP())
		require.NoError(t, err)
		conns[i] = c
	}
	w.send("GET", "/sandbox", "").is(t, 200)
	for _, c := range conns {
		c.SetReadDeadline(time.Now().Add(4 * patience))
		_, err := c.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.NoError(t, c.Close())
	}
}

func TestHTTPQuotaIsToldWithATimeToRetry(t *testing.T) {
	w := newWeb(t)
	a := w.send("POST", "/sandbox/create", `{"image":"refused"}`)
	e := a.problem(t, 429, "quota")
	require.Contains(t, e["message"], "quota of sandboxes")
	require.Equal(t, "sandboxes", e["quota"])
	require.NotEmpty(t, a.header.Get("Retry-After"))
	box := w.box()
	b := w.send("POST", "/sandbox/"+box+"/execute", `{"command":["refused"]}`)
	b.problem(t, 429, "too_many_execs")
	require.NotEmpty(t, b.header.Get("Retry-After"))
}

func TestHTTPWithoutTheLogIsUnavailable(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	w.Stop()
	a := w.send("GET", "/sandbox/"+box+"/status", "")
	a.problem(t, 503, "log_unavailable")
	require.NotEmpty(t, a.header.Get("Retry-After"))
	w.Resume()
	w.until(func() bool { return w.send("GET", "/sandbox/"+box+"/status", "").status == 200 })
}
