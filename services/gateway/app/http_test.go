package app_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/services/gateway/app"
)

// web is a client of the HTTP API of a world.
type web struct {
	*world
	base string
	// key is the API key of its calls, as the header has it.
	auth string
	spec *spec
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// newWeb is a world with two tenants whose keys are in the file, seen by alice of acme.
func newWeb(t testing.TB, change ...func(*app.Config)) *web {
	t.Helper()
	w := newWorld(t, twoTenants, change...)
	return &web{world: w, base: "http://" + w.app.HTTP(), auth: "ApiKey " + secret("alice"), spec: newSpec(t, "http://"+w.app.HTTP())}
}

// as is another caller of the same world.
func (w *web) with(auth string) *web {
	c := *w
	c.auth = auth
	return &c
}

// send makes a request of a method, a path below /api/v1, headers `Name: value` and a body, and holds the answer against the document.
func (w *web) send(method, path, body string, headers ...string) answer {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.base+"/api/v1"+path, strings.NewReader(body))
	require.NoError(w.t, err)
	if w.auth != "" {
		req.Header.Set("Authorization", w.auth)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Content-Type" {
			req.Header.Del(name)
		}
		req.Header.Add(name, value)
	}
	return w.do(req)
}

func (w *web) do(req *http.Request) answer {
	w.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	require.NoError(w.t, err)
	a := read(w.t, res)
	require.NotEmpty(w.t, a.header.Get("X-Correlation-Id"))
	w.spec.check(w.t, req.Method, req.URL.Path, a)
	return a
}

func read(t testing.TB, res *http.Response) answer {
	t.Helper()
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return answer{status: res.StatusCode, header: res.Header, body: data}
}

// is checks the status and reads the body.
func (a answer) is(t testing.TB, status int) map[string]any {
	t.Helper()
	require.Equal(t, status, a.status, "%s", a.body)
	var v map[string]any
	d := json.NewDecoder(bytes.NewReader(a.body))
	d.UseNumber()
	require.NoError(t, d.Decode(&v), "%s", a.body)
	return v
}

// problem checks an error whole: status, reason, the fields that are wrong.
func (a answer) problem(t testing.TB, status int, reason string, fields ...string) map[string]any {
	t.Helper()
	e, ok := a.is(t, status)["error"].(map[string]any)
	require.True(t, ok, "%s", a.body)
	require.Equal(t, reason, e["reason"], "%s", a.body)
	require.NotEmpty(t, e["message"])
	require.Equal(t, a.header.Get("X-Correlation-Id"), e["correlation_id"])
	got := []string{}
	all, _ := e["fields"].([]any)
	for _, f := range all {
		name, _ := f.(map[string]any)["field"].(string)
		got = append(got, name)
	}
	require.ElementsMatch(t, fields, got, "%s", a.body)
	return e
}

// box makes a sandbox over HTTP and waits until it runs.
func (w *web) box() string {
	w.t.Helper()
	id, _ := w.send("POST", "/sandbox/create", `{}`).is(w.t, 201)["sandbox_id"].(string)
	w.until(func() bool {
		return w.send("GET", "/sandbox/"+id+"/status", "").is(w.t, 200)["status"] == "running"
	})
	return id
}

// administer changes a tenant as an operator does.
func administer(w *world, id string, c tenant.Command) {
	w.t.Helper()
	command := ids.New()
	_, err := eventlog.Execute(w.t.Context(), jslog.New(w.JS), subject.Tenant(id), func(h eventlog.History) ([]envelope.Event, error) {
		bodies, err := tenant.Decide(tenant.Fold(h), c)
		return tenant.Events(id, command, "operator:test", now(), bodies...), err
	})
	require.NoError(w.t, err)
}

// mint makes a key of a tenant in the log.
func mint(w *world, id string, scopes tenant.Scopes) tenant.Secret {
	w.t.Helper()
	administer(w, id, tenant.CreateTenant{})
	s := tenant.NewSecret()
	administer(w, id, tenant.CreateKey{Secret: s, Scopes: scopes, At: now()})
	return s
}
