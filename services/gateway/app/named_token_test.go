package app_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// issue makes a key over the API and gives it as it was shown.
func (b *boxes) issue(body string) map[string]any {
	b.t.Helper()
	v := b.send("POST", "/tokens", strings.NewReader(body)).is(b.t, 201)
	require.Regexp(b.t, `^e2b_[0-9a-f]{40}$`, v["token"])
	require.Equal(b.t, v["token"].(string)[:12], v["prefix"])
	return v
}

func (b *boxes) prefixes() []string {
	b.t.Helper()
	found := []string{}
	for _, k := range b.send("GET", "/tokens", nil).is(b.t, 200)["tokens"].([]any) {
		require.NotContains(b.t, k, "token")
		found = append(found, k.(map[string]any)["prefix"].(string))
	}
	return found
}

// A token works from the moment it is made, on every gateway and over every API, allows what its role does, and not a second longer than until it is
// revoked.
func TestATokenWorksFromItsIssueToItsRevocation(t *testing.T) {
	w := newBoxes(t, twoTenants)
	alice := w.with("X-Sandrpod-Token: " + secret("alice"))
	require.Empty(t, alice.prefixes(), "keys of the file are not those of the log")
	other, _ := w.gateway(w.connect())
	user, admin := alice.issue(`{"name":"ci"}`), alice.issue(`{"name":"root","role":"admin"}`)
	require.Equal(t, []any{"ci", "user", "admin"}, []any{user["name"], user["role"], admin["role"]})
	narrow := alice.issue(`{"scopes":["inspect"]}`)
	require.Equal(t, []any{"custom", []any{"inspect"}}, []any{narrow["role"], narrow["scopes"]})
	require.Equal(t, []string{user["prefix"].(string), admin["prefix"].(string), narrow["prefix"].(string)}, alice.prefixes())

	there := *w
	there.base = "http://" + other.HTTP()
	for _, at := range []*boxes{w, &there} {
		c := at.with("X-Sandrpod-Token: " + user["token"].(string))
		c.send("GET", "/sandboxes", nil).is(t, 200)
		c.send("GET", "/tokens", nil).refused(t, 403, "scope_missing")
		at.with("Authorization: ApiKey "+user["token"].(string)).send("GET", "/sandbox", nil).is(t, 200)
		require.Len(t, at.with("Authorization: Bearer "+admin["token"].(string)).prefixes(), 3)
	}
	w.with("X-Sandrpod-Token: " + user["token"].(string)).made("ours")
	narrowed := w.with("X-Sandrpod-Token: " + narrow["token"].(string))
	narrowed.send("DELETE", "/sandboxes/ours", nil).refused(t, 403, "scope_missing")

	gone := alice.send("DELETE", "/tokens/"+user["prefix"].(string), nil).is(t, 200)
	revoked := time.Now()
	require.Equal(t, []any{true, user["id"]}, []any{gone["revoked"], gone["id"]})
	require.NotContains(t, gone, "token")
	for _, at := range []*boxes{w, &there} {
		c := at.with("X-Sandrpod-Token: " + user["token"].(string))
		w.until(func() bool { return c.send("GET", "/sandboxes", nil).status == 401 })
	}
	require.Less(t, time.Since(revoked), time.Second)
	require.Len(t, alice.prefixes(), 2)
	alice.send("DELETE", "/tokens/"+user["prefix"].(string), nil).refused(t, 404, "key_not_found")
	// An administrator may end its own.
	w.with("X-Sandrpod-Token: "+admin["token"].(string)).send("DELETE", "/tokens/"+admin["id"].(string), nil).is(t, 200)

	log := everything(t, w.JS, topology.StreamEvents) + everything(t, w.JS, topology.StreamCalls) + w.logs.String()
	for _, key := range []map[string]any{user, admin, narrow} {
		require.NotContains(t, log, key["token"])
		require.NotContains(t, log, key["token"].(string)[12:])
	}
	require.Contains(t, log, "key:alice", "the log says who made them")
}

// What is another tenant's is neither listed nor ended, and is answered like what never was.
func TestTokensAreTheirTenantsOwn(t *testing.T) {
	w := newBoxes(t, twoTenants)
	alice, bob := w.with("X-Sandrpod-Token: "+secret("alice")), w.with("X-Sandrpod-Token: "+secret("bob"))
	mine := alice.issue(`{"name":"mine"}`)
	require.Empty(t, bob.prefixes())
	for _, id := range []string{mine["prefix"].(string), mine["id"].(string)} {
		no := strings.Repeat("0", len(id))
		require.Equal(t, learned(bob.send("DELETE", "/tokens/"+no, nil), no), learned(bob.send("DELETE", "/tokens/"+id, nil), id))
	}
	require.Len(t, alice.prefixes(), 1)
	w.with("X-Sandrpod-Token: "+mine["token"].(string)).send("GET", "/sandboxes", nil).is(t, 200)
}

// A beginning that several keys have ends none of them, and one that is too short finds none.
func TestATokenIsRevokedByWhatNamesItAlone(t *testing.T) {
	w := newBoxes(t, nil)
	dev := w.with("X-Sandtrail-Tenant: acme")
	administer(w.world, "acme", tenant.CreateTenant{})
	twin := func(id, text string) {
		administer(w.world, "acme", tenant.CreateKey{Secret: tenant.Secret{ID: id, Text: text}, Scopes: tenant.All, At: now()})
	}
	twin("aaaaaaaaaaaa", "e2b_01234567"+strings.Repeat("a", 32))
	twin("bbbbbbbbbbbb", "e2b_01234567"+strings.Repeat("b", 32))
	twin("cccccccccccc", "e2b_01239999"+strings.Repeat("c", 32))
	for _, several := range []string{"e2b_01234567", "e2b_0123"} {
		require.Contains(t, dev.send("DELETE", "/tokens/"+several, nil).refused(t, 422, "validation"), "keys begin")
	}
	for _, none := range []string{"e2b_", "e2b_012", "aaaa", "e2b_01234567" + strings.Repeat("a", 32), "x%2Fy"} {
		dev.send("DELETE", "/tokens/"+none, nil).refused(t, 404, "key_not_found")
	}
	require.Len(t, dev.prefixes(), 3)
	dev.send("DELETE", "/tokens/aaaaaaaaaaaa", nil).is(t, 200)
	dev.send("DELETE", "/tokens/e2b_01234567", nil).is(t, 200)
	dev.send("DELETE", "/tokens/e2b_0123", nil).is(t, 200)
	require.Empty(t, dev.prefixes())
}

func TestWhatATokenMayNotBe(t *testing.T) {
	w := newBoxes(t, nil)
	for body, said := range map[string]string{
		`{"role":"root"}`: "role must be admin or user",
		`{"role":7}`:      "role must be a string",
		`{"name":["a"]}`:  "name must be a string",
		`{"name":"` + strings.Repeat("n", 129) + `"}`: "name must be at most 128 bytes",
		`{"name":"a\u0007"}`:                          "without control characters",
		`{"scopes":[]}`:                               "scopes at least one scope",
		`{"scopes":"admin"}`:                          "scopes must be an array of strings",
		`{"scopes":["all"]}`:                          "scopes",
		`{"scopes":["stop"],"role":"user"}`:           "scopes must not be given beside role",
		`{"tenant":"globex"}`:                         "tenant is not a field of this request",
	} {
		require.Contains(t, w.send("POST", "/tokens", strings.NewReader(body)).refused(t, 422, "validation"), said, body)
	}
	w.send("POST", "/tokens", strings.NewReader(`[]`)).refused(t, 400, "malformed_request")
	require.Empty(t, w.prefixes())
	// In development mode a tenant that nobody made gets its first key, and the bound of keys that work holds.
	w.issue(``)
	for range tenant.MaxKeys - 1 {
		administer(w.world, "default", tenant.CreateKey{Secret: tenant.NewToken(), Scopes: tenant.Stop, At: now()})
	}
	w.send("POST", "/tokens", nil).refused(t, 429, "quota")
}
