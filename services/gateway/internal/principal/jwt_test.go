package principal

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal/issuertest"
)

// clock is a time that a test sets.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func takes(i *issuertest.Issuer, change ...func(*JWTConfig)) (*JWTs, *clock) {
	config := JWTConfig{JWKS: i.URL, Issuer: issuertest.Name, Audience: issuertest.Audience}
	for _, c := range change {
		c(&config)
	}
	j, c := NewJWTs(config, slog.New(slog.DiscardHandler)), &clock{at: time.Now()}
	j.now, j.signers.now = c.now, c.now
	return j, c
}

// good fails the test where a token is refused.
func (j *JWTs) good(t *testing.T, token string) Principal {
	t.Helper()
	p, _, err := j.authenticate(t.Context(), token)
	require.NoError(t, err)
	return p
}

func TestTokensOfEveryAlgorithm(t *testing.T) {
	i := issuertest.Start(t)
	j, _ := takes(i)
	for _, kid := range []string{"rsa", "ec", "ed"} {
		p := j.good(t, i.Token(kid, issuertest.Claims(nil)))
		require.Equal(t, Principal{Tenant: "acme", Actor: "jwt:agent-7", Scopes: tenant.All &^ tenant.Admin}, p, kid)
	}
	require.EqualValues(t, 1, i.Fetches.Load(), "the keys are kept")
}

// A key that the issuer has taken on is asked for once, however many come with it; one that nobody has costs an issuer a fetch in ten
// seconds at most.
func TestKeysAreRotated(t *testing.T) {
	i := issuertest.Start(t)
	j, clock := takes(i)
	j.good(t, i.Token("ec", issuertest.Claims(nil)))
	next, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	i.Add("next", next)
	i.Remove("ec")
	clock.add(jwksPause)
	var all sync.WaitGroup
	token := i.Token("next", issuertest.Claims(nil))
	for range 50 {
		all.Go(func() {
			if _, _, err := j.authenticate(t.Context(), token); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 2, i.Fetches.Load())
	_, _, err = j.authenticate(t.Context(), i.Token("ec", issuertest.Claims(nil)))
	require.True(t, fault.Is(err, fault.ReasonKeyInvalid), "a key that was taken back is none")
	for n := range 100 {
		_, _, err := j.authenticate(t.Context(), issuertest.Sign(t, jwt.SigningMethodES256, next, map[string]any{"kid": fmt.Sprint(n)}, issuertest.Claims(nil)))
		require.True(t, fault.Is(err, fault.ReasonKeyInvalid))
	}
	require.EqualValues(t, 2, i.Fetches.Load())
	clock.add(jwksPause)
	for range 10 {
		_, _, err := j.authenticate(t.Context(), issuertest.Sign(t, jwt.SigningMethodES256, next, map[string]any{"kid": "none"}, issuertest.Claims(nil)))
		require.True(t, fault.Is(err, fault.ReasonKeyInvalid))
	}
	require.EqualValues(t, 3, i.Fetches.Load())
}

// An issuer that does not answer, or answers nonsense, changes nothing for an hour; then nobody is let in by old keys.
func TestAnIssuerThatFails(t *testing.T) {
	for name, fail := range map[string]func(*issuertest.Issuer){
		"down":         func(i *issuertest.Issuer) { i.Answer(http.StatusInternalServerError, "") },
		"no JWKS":      func(i *issuertest.Issuer) { i.Answer(http.StatusOK, "<html>") },
		"no keys":      func(i *issuertest.Issuer) { i.Answer(http.StatusOK, `{"keys":[]}`) },
		"too large":    func(i *issuertest.Issuer) { i.Answer(http.StatusOK, strings.Repeat(" ", jwksBytes+1)) },
		"elsewhere":    func(i *issuertest.Issuer) { i.Answer(http.StatusFound, "") },
		"only private": func(i *issuertest.Issuer) { i.Answer(http.StatusOK, `{"keys":[{"kty":"oct","kid":"rsa","k":"AA"}]}`) },
	} {
		t.Run(name, func(t *testing.T) {
			i := issuertest.Start(t)
			j, clock := takes(i)
			token := i.Token("ed", issuertest.Claims(map[string]any{"exp": time.Now().Add(24 * time.Hour).Unix()}))
			fail(i)
			_, _, err := j.authenticate(t.Context(), token)
			require.True(t, fault.Is(err, fault.ReasonIssuer), "%v", err)
			require.EqualValues(t, 1, i.Fetches.Load())
			_, _, err = j.authenticate(t.Context(), token)
			require.True(t, fault.Is(err, fault.ReasonIssuer), "%v", err)
			require.EqualValues(t, 1, i.Fetches.Load(), "it is not asked again at once")
			i.Answer(0, "")
			clock.add(jwksPause)
			j.good(t, token)
			fail(i)
			clock.add(jwksGood - time.Second)
			j.good(t, token)
			clock.add(time.Second)
			_, _, err = j.authenticate(t.Context(), token)
			require.True(t, fault.Is(err, fault.ReasonIssuer), "%v", err)
			i.Answer(0, "")
			clock.add(jwksPause)
			j.good(t, token)
		})
	}
}

func TestTimesOfTokens(t *testing.T) {
	i := issuertest.Start(t)
	j, clock := takes(i, func(c *JWTConfig) { c.Skew = 10 * time.Second })
	now := clock.now()
	at := func(d time.Duration) int64 { return now.Add(d).Unix() }
	for _, c := range []struct {
		changes map[string]any
		reason  fault.Reason
	}{
		{map[string]any{"exp": at(-8 * time.Second)}, ""},
		{map[string]any{"exp": at(-11 * time.Second)}, fault.ReasonTokenExpired},
		{map[string]any{"nbf": at(8 * time.Second)}, ""},
		{map[string]any{"nbf": at(12 * time.Second)}, fault.ReasonKeyInvalid},
		{map[string]any{"iat": at(8 * time.Second)}, ""},
		{map[string]any{"iat": at(12 * time.Second)}, fault.ReasonKeyInvalid},
		{map[string]any{"nbf": nil, "iat": nil}, ""},
		{map[string]any{"exp": nil}, fault.ReasonKeyInvalid},
		{map[string]any{"exp": at(-11 * time.Second), "aud": "others"}, fault.ReasonKeyInvalid},
	} {
		_, end, err := j.authenticate(t.Context(), i.Token("ed", issuertest.Claims(c.changes)))
		if c.reason != "" {
			require.True(t, fault.Is(err, c.reason), "%v: %v", c.changes, err)
			continue
		}
		require.NoError(t, err, "%v", c.changes)
		require.True(t, end.After(now), "%v", c.changes)
	}
}

func TestClaimsAreMapped(t *testing.T) {
	i := issuertest.Start(t)
	nested := map[string]any{"realm_access": map[string]any{"roles": []any{"runner", "unheard of", 7}}, "https://a/tenant": "t-17"}
	for name, c := range map[string]struct {
		change func(*JWTConfig)
		claims map[string]any
		want   Principal
		refuse bool
	}{
		"an array of scopes": {nil, map[string]any{"scope": []any{"inspect", "stop"}}, Principal{Tenant: "acme", Actor: "jwt:agent-7", Scopes: tenant.Inspect | tenant.Stop}, false},
		"no scopes":          {nil, map[string]any{"scope": nil}, Principal{Tenant: "acme", Actor: "jwt:agent-7"}, false},
		"a number of scopes": {nil, map[string]any{"scope": 7}, Principal{Tenant: "acme", Actor: "jwt:agent-7"}, false},
		"names and a pointer": {
			func(c *JWTConfig) {
				c.TenantClaim, c.Tenants = "https://a/tenant", map[string]string{"t-17": "globex"}
				c.ScopeClaim, c.Scopes = "/realm_access/roles", map[string]string{"runner": "create+execute"}
			},
			nested,
			Principal{Tenant: "globex", Actor: "jwt:agent-7", Scopes: tenant.Create | tenant.Execute},
			false,
		},
		"a tenant that is not listed": {func(c *JWTConfig) { c.Tenants = map[string]string{"t-17": "globex"} }, nil, Principal{}, true},
		"names that are mapped mean nothing by themselves": {
			func(c *JWTConfig) { c.Scopes = map[string]string{"runner": "execute"} },
			map[string]any{"scope": "admin runner"},
			Principal{Tenant: "acme", Actor: "jwt:agent-7", Scopes: tenant.Execute},
			false,
		},
		"a subject that could be no header": {
			nil, map[string]any{"sub": "auth0|17\r\nx"}, Principal{Tenant: "acme", Actor: actor("auth0|17\r\nx"), Scopes: tenant.All &^ tenant.Admin}, false,
		},
		"no subject":          {nil, map[string]any{"sub": nil}, Principal{}, true},
		"no tenant":           {nil, map[string]any{"tenant": nil}, Principal{}, true},
		"a tenant of a list":  {nil, map[string]any{"tenant": []any{"acme"}}, Principal{}, true},
		"a tenant of nobody":  {nil, map[string]any{"tenant": "_none"}, Principal{}, true},
		"a tenant with a dot": {nil, map[string]any{"tenant": "acme.>"}, Principal{}, true},
	} {
		change := c.change
		if change == nil {
			change = func(*JWTConfig) {}
		}
		j, _ := takes(i, change)
		p, _, err := j.authenticate(t.Context(), i.Token("ed", issuertest.Claims(c.claims)))
		require.Equal(t, c.refuse, fault.Is(err, fault.ReasonKeyInvalid), "%s: %v", name, err)
		require.Equal(t, c.want, p, name)
	}
	require.NotContains(t, actor("a b"), " ")
	require.NotEqual(t, actor("a b"), actor(strings.TrimPrefix(actor("a b"), "jwt:")), "no subject takes another's name")
}

// Of a set only what can check signatures is used.
func TestKeysOfAnIssuerThatAreNotUsed(t *testing.T) {
	i := issuertest.Start(t)
	small, err := rsa.GenerateKey(rand.Reader, 1024) //nolint:gosec // it is the key that must be refused
	require.NoError(t, err)
	large, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	require.NoError(t, err)
	with := func(kid, of string, changes map[string]any) map[string]any {
		k := issuertest.Public(kid, i.Key(of).Public())
		for name, v := range changes {
			k[name] = v
		}
		return k
	}
	set := []any{
		with("good", "ed", nil), with("ops", "ec", map[string]any{"key_ops": []string{"verify"}}),
		with("", "ed", nil), with(strings.Repeat("k", maxKid+1), "ed", nil), with("enc", "rsa", map[string]any{"use": "enc"}),
		with("hs", "rsa", map[string]any{"alg": "HS256"}), with("rs512", "rsa", map[string]any{"alg": "RS512"}),
		with("private", "ed", map[string]any{"d": "AA"}), with("sign", "ed", map[string]any{"key_ops": []string{"sign"}}),
		with("off", "ec", map[string]any{"y": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}), with("short", "ed", map[string]any{"x": "AA"}),
		with("padded", "rsa", map[string]any{"e": "AQAB=="}), with("one", "rsa", map[string]any{"e": "AQ"}),
		issuertest.Public("small", small.Public()), issuertest.Public("p384", large.Public()),
		with("twice", "ed", nil), with("twice", "ec", nil), 7, nil,
		map[string]any{"kty": "oct", "kid": "oct", "k": "AA"},
	}
	data, err := json.Marshal(map[string]any{"keys": set})
	require.NoError(t, err)
	keys, ignored, err := parseJWKS(data)
	require.NoError(t, err)
	require.Len(t, keys, 2)
	require.Contains(t, keys, "good")
	require.Contains(t, keys, "ops")
	require.Len(t, ignored, len(set)-3)
	_, _, err = parseJWKS(fmt.Appendf(nil, `{"keys":[%s1]}`, strings.Repeat("1,", jwksKeys)))
	require.ErrorContains(t, err, "more than")
}

// FuzzJWKS: a set is refused, or each of its keys is good for exactly one of the algorithms that are taken.
func FuzzJWKS(f *testing.F) {
	i := issuertest.Start(f)
	whole, err := json.Marshal(map[string]any{"keys": []any{
		issuertest.Public("rsa", i.Key("rsa").Public()), issuertest.Public("ec", i.Key("ec").Public()), issuertest.Public("ed", i.Key("ed").Public()),
	}})
	require.NoError(f, err)
	for _, s := range []string{string(whole), `{}`, `{"keys":null}`, `{"keys":[{}]}`, `[]`, `{"keys":[{"kty":"EC","crv":"P-256","kid":"a","x":"","y":""}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		keys, _, err := parseJWKS(data)
		require.Equal(t, err != nil, len(keys) == 0)
		for kid, k := range keys {
			require.NotEmpty(t, kid)
			require.Contains(t, algorithms, k.alg)
		}
	})
}

// FuzzToken: what was not signed by the issuer is never let in, and whatever comes is answered.
func FuzzToken(f *testing.F) {
	i := issuertest.Start(f)
	j, _ := takes(i)
	good := i.Token("ed", issuertest.Claims(map[string]any{"exp": time.Now().Add(10 * 365 * 24 * time.Hour).Unix()}))
	parts := strings.Split(good, ".")
	for _, s := range []string{good, "", "..", parts[0] + "." + parts[1] + ".", parts[0] + ".e30." + parts[2], "eyJhbGciOiJub25lIn0.e30.", good + "=", " " + good} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, token []byte) {
		p, _, err := j.authenticate(t.Context(), string(token))
		if err == nil {
			require.True(t, bytes.Equal(token, []byte(good)), "%q was let in", token)
			return
		}
		require.Equal(t, Principal{}, p)
		require.Equal(t, fault.Unauthorized, fault.CodeOf(err), "%v", err)
	})
}
