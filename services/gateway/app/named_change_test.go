package app_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/tenant"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/gateway/app"
)

func (b *boxes) change(name, body string) answer {
	b.t.Helper()
	return b.send("PATCH", "/sandboxes/"+name, strings.NewReader(body))
}

// until is when a sandbox's time ends, as an answer says it.
func (a answer) until(t testing.TB) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, a.is(t, 200)["expires_at"].(string))
	require.NoError(t, err)
	return at
}

func TestANamedSandboxIsGivenMoreTimeAndOtherLabels(t *testing.T) {
	w := newBoxes(t, nil)
	made := w.json("POST", "/sandboxes", map[string]any{"name": "demo", "ttl_seconds": 600, "labels": map[string]string{"team": "a", "tier": "1"}}).is(t, 201)
	id := made["sandbox"].(map[string]any)["id"].(string)

	changed := w.change("demo", `{"labels":{"team":"b"},"ttl_seconds":7200}`)
	require.WithinDuration(t, now().Add(2*time.Hour), changed.until(t), time.Minute)
	v := changed.is(t, 200)
	require.Equal(t, map[string]any{"team": "b"}, v["labels"], "what is not named is gone")
	require.Equal(t, []any{id, "demo", "RUNNING"}, []any{v["id"], v["name"], v["state"]})
	seconds, err := v["ttl_seconds"].(json.Number).Int64()
	require.NoError(t, err)
	require.InDelta(t, 7200, seconds, 60, "it counts from its creation")
	got := w.send("GET", "/sandboxes/"+id, nil).is(t, 200)
	require.Equal(t, []any{v["labels"], v["expires_at"]}, []any{got["labels"], got["expires_at"]})
	s, err := w.peer.load("default", id)
	require.NoError(t, err)
	require.Equal(t, "b", s.View().GetRequested().GetLabels()["team"], "lists find it by what it has now")

	// What is left out, or null, stays; a shorter time changes nothing.
	until := changed.until(t)
	for _, body := range []string{``, `{}`, `{"labels":null,"ttl_seconds":null}`, `{"ttl_seconds":1}`, `{"labels":{"team":"b"}}`} {
		again := w.change("demo", body)
		require.Equal(t, until, again.until(t), body)
		require.Equal(t, map[string]any{"team": "b"}, again.is(t, 200)["labels"], body)
	}
	before := s.Seq
	s, err = w.peer.load("default", id)
	require.NoError(t, err)
	require.Equal(t, before, s.Seq, "none of these is an event")
	require.Empty(t, w.change("demo", `{"labels":{}}`).is(t, 200)["labels"])
	require.Contains(t, string(w.send("GET", "/sandboxes/demo/logs", nil).body), "labels")

	// A stopped one takes both too, and one that failed takes labels.
	w.send("POST", "/sandboxes/demo/stop", nil).is(t, 200)
	stopped := w.change("demo", `{"labels":{"night":"1"},"ttl_seconds":10000}`).is(t, 200)
	require.Equal(t, []any{"STOPPED", map[string]any{"night": "1"}}, []any{stopped["state"], stopped["labels"]})
	require.NoError(t, w.decide("default", id, sandbox.Fail{At: time.Now(), Reason: "runtime_failed"}))
	require.Equal(t, map[string]any{"broken": "1"}, w.change("demo", `{"labels":{"broken":"1"}}`).is(t, 200)["labels"])
	w.change("demo", `{"ttl_seconds":20000}`).refused(t, 409, "sandbox_failed")
}

func TestWhatAChangeMayNotAskFor(t *testing.T) {
	w := newBoxes(t, nil, func(c *app.Config) { c.MaxRuntime = 24 * time.Hour })
	id := w.made("demo")["id"].(string)
	before := w.peer.count("cmd.sandbox.default." + id)
	many, err := json.Marshal(map[string]any{"labels": func() map[string]string {
		all := map[string]string{}
		for range 33 {
			all["l"+strings.ReplaceAll(ids.New(), "-", "")] = ""
		}
		return all
	}()})
	require.NoError(t, err)
	for body, said := range map[string]string{
		`{"ttl_seconds":0}`:                                   "ttl_seconds must be",
		`{"ttl_seconds":-5}`:                                  "ttl_seconds must be",
		`{"ttl_seconds":1.5}`:                                 "ttl_seconds must be",
		`{"ttl_seconds":"600"}`:                               "ttl_seconds must be",
		`{"ttl_seconds":99999999999}`:                         "ttl_seconds must be",
		`{"ttl_seconds":2000000000}`:                          "ttl_seconds a sandbox of this deployment lives for at most",
		`{"labels":[]}`:                                       "labels must be an object of strings",
		`{"labels":{"a":1}}`:                                  "labels must be an object of strings",
		`{"labels":{"a":null}}`:                               `labels["a"] must be a string`,
		`{"labels":{"":"x"}}`:                                 "labels",
		`{"labels":{"a b":"x"}}`:                              "labels",
		`{"labels":{"a":"` + strings.Repeat("v", 129) + `"}}`: "labels",
		`{"labels":{"a":"x\u0000y"}}`:                         "must not hold a zero byte",
		`{"name":"other"}`:                                    "name cannot be changed; there is: ttl_seconds, labels",
		`{"ttl_seconds":600,"cpu_cores":2}`:                   "cpu_cores cannot be changed",
		string(many):                                          "labels",
	} {
		require.Contains(t, w.change("demo", body).refused(t, 422, "validation"), said, body)
	}
	for _, body := range []string{`{`, `[]`, `7`, `{} {}`, `null`} {
		w.change("demo", body).refused(t, 400, "malformed_request")
	}
	w.change("demo", `{"labels":{"a":"`+strings.Repeat("v", 64<<10)+`"}}`).refused(t, 413, "too_large")
	require.Equal(t, before, w.peer.count("cmd.sandbox.default."+id), "nothing was begun")
	w.change("none", `{}`).refused(t, 404, "sandbox_not_found")
	w.send("DELETE", "/sandboxes/demo", nil).is(t, 200)
	for _, body := range []string{`{"labels":{}}`, `{"ttl_seconds":600}`} {
		w.change(id, body).refused(t, 409, "sandbox_destroyed")
	}
}

// The id of another tenant's sandbox is answered like one that never was, by everything that changes.
func TestAnotherTenantChangesNothing(t *testing.T) {
	w := newBoxes(t, twoTenants)
	alice, bob := w.with("Authorization: Bearer "+secret("alice")), w.with("Authorization: Bearer "+secret("bob"))
	id, no := alice.made("mine")["id"].(string), ids.New()
	for _, body := range []string{`{}`, `{"ttl_seconds":600}`, `{"labels":{"a":"b"}}`} {
		require.Equal(t, learned(bob.change(no, body), no), learned(bob.change(id, body), id), body)
		bob.change("mine", body).refused(t, 404, "sandbox_not_found")
	}
	require.Empty(t, alice.send("GET", "/sandboxes/mine", nil).is(t, 200)["labels"])
	key := mint(w.world, "acme", tenant.All&^(tenant.Create|tenant.Admin))
	weak := w.with("X-Sandrpod-Token: " + key.Text)
	weak.change("mine", `{"labels":{}}`).refused(t, 403, "scope_missing")
}

// A time of idleness may be asked for, and its use is told as over the other APIs.
func TestNamedSandboxesMayEndWhenNobodyUsesThem(t *testing.T) {
	w := newBoxes(t, nil)
	w.peer.script("bash", func(x *execution) { x.complete(0) })
	made := w.json("POST", "/sandboxes", map[string]any{"name": "demo", "idle_timeout_seconds": 600}).is(t, 201)["sandbox"].(map[string]any)
	require.Equal(t, json.Number("600"), made["idle_timeout_seconds"])
	id := made["id"].(string)
	s, err := w.peer.load("default", id)
	require.NoError(t, err)
	require.Equal(t, 10*time.Minute, s.IdleTimeout())
	before := w.peer.count("cmd.sandbox.default." + id)
	w.json("POST", "/sandboxes/execute?sandbox=demo", map[string]any{"code": "true"}).is(t, 200)
	require.Equal(t, before+1, w.peer.count("cmd.sandbox.default."+id))
	require.NotContains(t, w.made("free"), "idle_timeout_seconds")
	for _, bad := range []int64{-1, 1, 9, 2592001, 1 << 40} {
		said := w.json("POST", "/sandboxes", map[string]any{"name": "no", "idle_timeout_seconds": bad}).refused(t, http.StatusUnprocessableEntity, "validation")
		require.Contains(t, said, "idle_timeout_seconds")
	}
}

// decide records what a command leads to, without anybody being asked.
func (b *boxes) decide(tenantID, id string, c sandbox.Command) error {
	return b.peer.decide(&commandsv1.SandboxCommand{CommandId: ids.New(), TenantId: tenantID, SandboxId: id}, ids.New(), c)
}
