package app_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/app"
)

// A key that is revoked works no longer than a second on any gateway, and what is open with it ends.
func TestARevokedKeyStopsWorkingOnEveryGateway(t *testing.T) {
	w := newWeb(t)
	other, conn := w.gateway(w.connect())
	s := mint(w.world, "acme", tenant.All)
	first, second := w.with("ApiKey "+s.Text), w.with("ApiKey "+s.Text)
	second.base = "http://" + other.HTTP()
	for _, c := range []*web{first, second} {
		w.until(func() bool { return c.send("GET", "/sandbox", "").status == 200 })
	}
	box := first.box()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "ApiKey "+s.Text)
	stream, err := computev1.NewComputeServiceClient(conn).WatchEvents(ctx, &computev1.WatchEventsRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	waiting := make(chan answer, 1)
	go func() { waiting <- second.send("POST", "/sandbox/"+box+"/execute", `{"command":["wait"]}`) }()
	w.until(func() bool { return w.peer.count("cmd.exec.") > 0 })

	administer(w.world, "acme", tenant.RevokeKeys{IDs: []string{s.ID}, At: now()})
	revoked := time.Now()
	for _, c := range []*web{first, second} {
		w.until(func() bool { return c.send("GET", "/sandbox", "").status == 401 })
	}
	require.Less(t, time.Since(revoked), time.Second)
	for err == nil {
		_, err = stream.Recv()
	}
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	(<-waiting).problem(t, 401, "key_invalid")
	require.Less(t, time.Since(revoked), 2*time.Second)
	w.send("GET", "/sandbox", "").is(t, 200) // the keys of the file go on working
	require.NotContains(t, everything(t, w.JS, topology.StreamEvents), s.Text)
	require.NotContains(t, w.logs.String(), s.Text)
}

// Whoever makes a key can use it at once, on every gateway.
func TestAKeyWorksFromTheMomentItIsMade(t *testing.T) {
	w := newWeb(t)
	other, _ := w.gateway(w.connect())
	for range 20 {
		s := mint(w.world, "acme", tenant.All)
		for _, base := range []string{w.base, "http://" + other.HTTP()} {
			c := w.with("ApiKey " + s.Text)
			c.base = base
			c.send("GET", "/sandbox", "").is(t, 200)
		}
	}
}

func TestAKeyOfTheLogExpiresWhileItIsUsed(t *testing.T) {
	w := newWeb(t)
	administer(w.world, "acme", tenant.CreateTenant{})
	s := tenant.NewSecret()
	administer(w.world, "acme", tenant.CreateKey{Secret: s, Scopes: tenant.All, At: now(), ExpiresAt: now().Add(3 * time.Second)})
	c := w.with("ApiKey " + s.Text)
	w.until(func() bool { return c.send("GET", "/sandbox", "").status == 200 })
	box := c.box()
	c.send("POST", "/sandbox/"+box+"/execute", `{"command":["wait"]}`).problem(t, 401, "key_invalid")
	c.send("GET", "/sandbox", "").problem(t, 401, "key_invalid")
}

// Live events may be lost: then the log is asked.
func TestRevocationWithoutLiveEvents(t *testing.T) {
	w := newWeb(t)
	w.mute(topology.StreamEvents)
	s := mint(w.world, "acme", tenant.Inspect)
	c := w.with("ApiKey " + s.Text)
	w.until(func() bool { return c.send("GET", "/sandbox", "").status == 200 })
	administer(w.world, "acme", tenant.RevokeKeys{At: now()})
	revoked := time.Now()
	w.until(func() bool { return c.send("GET", "/sandbox", "").status == 401 })
	require.Less(t, time.Since(revoked), time.Second)
}

// Every route, and every call of gRPC, needs one scope, and no other opens it.
func TestScopesOfKeys(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	id := w.send("POST", "/sandbox/"+box+"/execute", `{"command":["true"]}`).header.Get("Sandtrail-Execution-Id")
	callers := map[tenant.Scopes]*web{}
	for _, s := range []tenant.Scopes{tenant.Create, tenant.Inspect, tenant.Execute, tenant.Files, tenant.Stop} {
		callers[s] = w.with("ApiKey " + mint(w.world, "acme", s).Text)
		w.until(func() bool { return callers[s].send("GET", "/sandbox", "").status != 401 })
	}
	for _, c := range []struct {
		method, path, body string
		allowed            tenant.Scopes
	}{
		{"POST", "/sandbox/create", `{}`, tenant.Create},
		{"GET", "/sandbox", "", tenant.Inspect},
		{"GET", "/sandboxes", "", tenant.Inspect},
		{"GET", "/quota", "", tenant.Inspect},
		{"GET", "/sandbox/" + box, "", tenant.Inspect},
		{"GET", "/sandbox/" + box + "/status", "", tenant.Inspect},
		{"POST", "/sandbox/" + box + "/execute", `{"command":["true"]}`, tenant.Execute},
		{"GET", "/sandbox/" + box + "/executions/" + id, "", tenant.Execute | tenant.Inspect},
		{"GET", "/sandbox/" + box + "/executions/" + id + "/output?stream=stdout", "", tenant.Execute | tenant.Inspect},
		{"PUT", "/sandbox/" + box + "/files?path=f", "x", tenant.Files},
		{"GET", "/sandbox/" + box + "/files?path=f", "", tenant.Files},
		{"DELETE", "/sandbox/" + box + "/files?path=f", "", tenant.Files},
		{"GET", "/sandbox/" + box + "/executions/" + id + "/events", "", tenant.Execute | tenant.Inspect},
		{"POST", "/sandbox/" + box + "/executions/" + id + "/cancel", "", tenant.Execute},
		{"POST", "/sandbox/" + box + "/files", `{"files":[{"path":"f","content":""}]}`, tenant.Files},
		{"GET", "/sandbox/" + box + "/files/list?path=", "", tenant.Files},
		{"POST", "/sandbox/" + box + "/extend", `{"timeout_seconds":1}`, tenant.Create},
		{"POST", "/sandbox/" + box + "/stop", "", tenant.Stop},
		{"DELETE", "/sandbox/" + box, "", tenant.Stop},
	} {
		for s, caller := range callers {
			a := caller.send(c.method, c.path, c.body)
			if c.allowed.Allows(s) {
				require.Less(t, a.status, 300, "%s %s with %s: %s", c.method, c.path, s, a.body)
				continue
			}
			e := a.problem(t, 403, "scope_missing")
			require.Contains(t, e["message"], strings.Join(c.allowed.Names(), " or "))
		}
	}
	grpcs := map[string]tenant.Scopes{
		"CreateSandbox": tenant.Create, "DestroySandbox": tenant.Stop, "DescribeSandbox": tenant.Inspect, "ExecCommand": tenant.Execute,
		"ReadFile": tenant.Files, "WriteFile": tenant.Files, "ListFiles": tenant.Files, "ListSandboxes": tenant.Inspect,
		"AttachExec": tenant.Execute | tenant.Inspect, "CancelExec": tenant.Execute, "GetExec": tenant.Execute | tenant.Inspect,
		"WatchEvents": tenant.Inspect, "ListUsage": tenant.Inspect, "GetQuota": tenant.Inspect, "StopSandbox": tenant.Stop, "StartSandbox": tenant.Stop,
		"ExtendSandbox": tenant.Create,
	}
	answerUsage(w.world)
	fields := map[string]string{"image": "python", "command": "true", "path": "f", "sandbox_id": box, "exec_id": id}
	for _, m := range methods() {
		need, named := grpcs[string(m.Name())]
		require.True(t, named, "%s needs no scope", m.Name())
		for s, caller := range callers {
			ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", caller.auth)
			_, err := call(ctx, w.conn, m, request(t, m, fields))
			require.Equal(t, !need.Allows(s), status.Code(err) == codes.PermissionDenied, "%s with %s: %v", m.Name(), s, err)
		}
	}
}

func TestRequireKeysEndsDevelopmentMode(t *testing.T) {
	w := newWorld(t, nil, func(c *app.Config) { c.RequireKeys = true })
	require.False(t, w.app.Development())
	_, err := w.ListSandboxes(t.Context(), &computev1.ListSandboxesRequest{})
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	s := mint(w, "acme", tenant.Inspect)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "ApiKey "+s.Text)
	w.until(func() bool {
		_, err := w.ListSandboxes(ctx, &computev1.ListSandboxesRequest{})
		return err == nil
	})
	require.NoError(t, app.Config{HTTP: "0.0.0.0:1", RequireKeys: true, SealKeyFile: "k"}.Validate())
}

// Operators may have a listener of their own, and then tenants reach neither metrics nor health.
func TestOperatorsListenApart(t *testing.T) {
	w := newWorld(t, twoTenants, func(c *app.Config) { c.Ops = "127.0.0.1:0" })
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(addr, path string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, http.NoBody)
		require.NoError(t, err)
		res, err := client.Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		return res.StatusCode
	}
	for _, path := range []string{"/metrics", "/healthz", "/readyz"} {
		w.until(func() bool { return get(w.app.Ops(), path) == 200 })
		require.Equal(t, 404, get(w.app.HTTP(), path))
	}
	require.Equal(t, 404, get(w.app.Ops(), "/api/v1/openapi.json"))
}
