package app_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sandtrail/sandtrail/libs/topology"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/app"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal/issuertest"
)

// issued is a world that takes tokens of an issuer beside the keys of its file.
func issued(t *testing.T, change ...func(*app.Config)) (*web, *issuertest.Issuer) {
	t.Helper()
	i := issuertest.Start(t)
	w := newWeb(t, append([]func(*app.Config){func(c *app.Config) {
		c.JWT = app.JWT{JWKS: i.URL, Issuer: issuertest.Name, Audience: issuertest.Audience}
	}}, change...)...)
	return w, i
}

// overGRPC makes the same call with the same credential.
func (w *web) overGRPC(auth string) error {
	ctx := metadata.AppendToOutgoingContext(w.t.Context(), "authorization", auth)
	_, err := w.ListSandboxes(ctx, &computev1.ListSandboxesRequest{})
	return err
}

const (
	invalidCredential = `{"error":{"code":"unauthorized","reason":"key_invalid","message":"the credential is not valid; API keys are sent as ` +
		"`authorization: ApiKey KEY`" + `","correlation_id":"ID"}}`
	expiredToken = `{"error":{"code":"unauthorized","reason":"token_expired","message":"the token's time is over; get a new one and repeat the request","correlation_id":"ID"}}`
)

// Every token that is not whole, not for us or not in time is refused alike, over both APIs, and tells its bearer nothing.
func TestTokensThatAreRefused(t *testing.T) {
	w, i := issued(t)
	good := i.Token("rsa", issuertest.Claims(nil))
	w.with("Bearer "+good).send("GET", "/sandbox", "").is(t, 200)
	require.NoError(t, w.overGRPC("Bearer "+good))
	parts := strings.Split(good, ".")
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	_, stranger, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKIXPublicKey(i.Key("rsa").Public())
	require.NoError(t, err)
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	sign := func(method jwt.SigningMethod, key any, header map[string]any, changes map[string]any) string {
		return issuertest.Sign(t, method, key, header, issuertest.Claims(changes))
	}
	claims := func(changes map[string]any) string { return i.Token("ed", issuertest.Claims(changes)) }
	now := time.Now()
	rsa, ec, ed := i.Key("rsa"), i.Key("ec"), i.Key("ed")
	tokens := map[string]string{
		"not yet valid":                     claims(map[string]any{"nbf": now.Add(5 * time.Minute).Unix()}),
		"issued in the future":              claims(map[string]any{"iat": now.Add(5 * time.Minute).Unix()}),
		"no end":                            claims(map[string]any{"exp": nil}),
		"an end that is text":               claims(map[string]any{"exp": "tomorrow"}),
		"another audience":                  claims(map[string]any{"aud": "others"}),
		"other audiences":                   claims(map[string]any{"aud": []string{"others", "sandtrail-not"}}),
		"no audience":                       claims(map[string]any{"aud": nil}),
		"another issuer":                    claims(map[string]any{"iss": issuertest.Name + "/"}),
		"no issuer":                         claims(map[string]any{"iss": nil}),
		"no subject":                        claims(map[string]any{"sub": nil}),
		"no tenant":                         claims(map[string]any{"tenant": nil}),
		"a tenant that cannot be":           claims(map[string]any{"tenant": "acme.*"}),
		"expired, and for others":           claims(map[string]any{"exp": now.Add(-time.Hour).Unix(), "aud": "others"}),
		"alg none":                          sign(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, map[string]any{"kid": "rsa"}, nil),
		"alg none, in other letters":        segment(t, `{"alg":"nOnE","kid":"rsa"}`) + "." + parts[1] + ".",
		"HS256 with the public key":         sign(jwt.SigningMethodHS256, public, map[string]any{"kid": "rsa"}, nil),
		"HS256 with the public key's bytes": sign(jwt.SigningMethodHS256, der, map[string]any{"kid": "rsa"}, nil),
		"RS512":                             sign(jwt.SigningMethodRS512, rsa, map[string]any{"kid": "rsa"}, nil),
		"PS256":                             sign(jwt.SigningMethodPS256, rsa, map[string]any{"kid": "rsa"}, nil),
		"the id of another kind of key":     sign(jwt.SigningMethodES256, ec, map[string]any{"kid": "rsa"}, nil),
		"the id of another key":             sign(jwt.SigningMethodES256, other, map[string]any{"kid": "ec"}, nil),
		"an id that nobody has":             sign(jwt.SigningMethodEdDSA, ed, map[string]any{"kid": "none"}, nil),
		"no id":                             sign(jwt.SigningMethodEdDSA, ed, nil, nil),
		"an id that is a number":            sign(jwt.SigningMethodEdDSA, ed, map[string]any{"kid": 7}, nil),
		"a key that it brings along":        sign(jwt.SigningMethodEdDSA, stranger, map[string]any{"kid": "x", "jwk": issuertest.Public("x", stranger.Public())}, nil),
		"keys that it points to":            sign(jwt.SigningMethodEdDSA, stranger, map[string]any{"kid": "ed", "jku": "https://evil.example/keys"}, nil),
		"extensions":                        sign(jwt.SigningMethodEdDSA, ed, map[string]any{"kid": "ed", "crit": []string{"exp"}}, nil),
		"another type":                      sign(jwt.SigningMethodEdDSA, ed, map[string]any{"kid": "ed", "typ": "logout+jwt"}, nil),
		"no signature":                      parts[0] + "." + parts[1] + ".",
		"another's signature":               parts[0] + "." + parts[1] + "." + strings.Split(claims(nil), ".")[2],
		"other claims":                      parts[0] + "." + strings.Split(claims(map[string]any{"tenant": "globex"}), ".")[1] + "." + parts[2],
		"one character more":                good + "A",
		"padding":                           good + "==",
		"four parts":                        good + ".x",
		"two parts":                         parts[0] + "." + parts[1],
		"encrypted":                         good + ".x.y",
		"no JSON":                           "eA.eA.eA",
		"over the size":                     claims(map[string]any{"more": strings.Repeat("x", 8<<10)}),
		"an API key":                        secret("alice"),
		"two tokens":                        good + " " + good,
	}
	for name, token := range tokens {
		t.Run(name, func(t *testing.T) {
			w.refusedAlike(t, "Bearer "+token, invalidCredential)
			w.refusedAlike(t, "ApiKey "+token, map[bool]string{true: "", false: invalidCredential}[name == "an API key"])
		})
	}
	w.refusedAlike(t, "Bearer "+claims(map[string]any{"exp": now.Add(-time.Hour).Unix()}), expiredToken)
	// What is good behind one scheme is nothing behind another.
	w.refusedAlike(t, "ApiKey "+good, invalidCredential)
	w.refusedAlike(t, "JWT "+good, invalidCredential)
	w.refusedAlike(t, good, invalidCredential)
	w.with("").send("GET", "/sandbox", "").problem(t, 401, "key_missing")
	for _, auth := range [][]string{{"Bearer " + good, "Bearer " + good}, {"ApiKey " + secret("alice"), "Bearer " + good}} {
		w.with("").send("GET", "/sandbox", "", "Authorization: "+auth[0], "Authorization: "+auth[1]).problem(t, 401, "key_invalid")
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", auth[0], "authorization", auth[1])
		_, err := w.ListSandboxes(ctx, &computev1.ListSandboxesRequest{})
		require.Equal(t, codes.Unauthenticated, status.Code(err))
	}
	require.LessOrEqual(t, i.Fetches.Load(), int64(5), "tokens with made-up keys cost an issuer little")
	require.NotContains(t, w.logs.String(), parts[2])
}

// refusedAlike checks the whole answer over HTTP, and the same over gRPC. No body: it is let in.
func (w *web) refusedAlike(t *testing.T, auth, body string) {
	t.Helper()
	a := w.with(auth).send("GET", "/sandbox", "")
	err := w.overGRPC(auth)
	if body == "" {
		a.is(t, 200)
		require.NoError(t, err)
		return
	}
	require.Equal(t, 401, a.status)
	require.Equal(t, "ApiKey, Bearer", a.header.Get("WWW-Authenticate"))
	require.JSONEq(t, strings.Replace(body, `"ID"`, fmt.Sprintf("%q", a.header.Get("X-Correlation-Id")), 1), string(a.body))
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	require.Contains(t, body, fmt.Sprintf("%q", detail(t, err).GetReason()))
}

func segment(t *testing.T, text string) string {
	t.Helper()
	return base64.RawURLEncoding.EncodeToString([]byte(text))
}

// A token acts for its tenant with its scopes, is named in events by its subject, and shows nothing of another tenant.
func TestTokensActForTheirTenant(t *testing.T) {
	w, i := issued(t)
	agent := w.with("Bearer " + i.Token("ec", issuertest.Claims(nil)))
	box := agent.box()
	w.send("GET", "/sandbox/"+box+"/status", "").is(t, 200) // alice is of the same tenant
	require.Contains(t, everything(t, w.JS, topology.StreamEvents), "jwt:agent-7")
	stranger := w.with("Bearer " + i.Token("ec", issuertest.Claims(map[string]any{"tenant": "globex"})))
	stranger.send("GET", "/sandbox/"+box+"/status", "").problem(t, 404, "sandbox_not_found")
	require.NotContains(t, string(stranger.send("GET", "/sandbox", "").body), box)
	looks := w.with("Bearer " + i.Token("ec", issuertest.Claims(map[string]any{"scope": "inspect"})))
	looks.send("GET", "/sandbox/"+box+"/status", "").is(t, 200)
	looks.send("POST", "/sandbox/"+box+"/stop", "").problem(t, 403, "scope_missing")
	// A token that follows another of the same subject repeats what that one began.
	body := `{"command":["true"]}`
	first := agent.send("POST", "/sandbox/"+box+"/execute", body, "Idempotency-Key: once")
	renewed := w.with("Bearer " + i.Token("rsa", issuertest.Claims(map[string]any{"jti": "another"})))
	require.Equal(t, string(first.body), string(renewed.send("POST", "/sandbox/"+box+"/execute", body, "Idempotency-Key: once").body))
	require.NotContains(t, everything(t, w.JS, topology.StreamEvents), strings.TrimPrefix(agent.auth, "Bearer "))
}

// What is open with a token ends with it.
func TestATokenExpiresWhileItIsUsed(t *testing.T) {
	w, i := issued(t, func(c *app.Config) { c.JWT.Skew = time.Second })
	box := w.box()
	auth := "Bearer " + i.Token("ed", issuertest.Claims(map[string]any{"exp": time.Now().Add(2 * time.Second).Unix()}))
	stream, err := w.WatchEvents(metadata.AppendToOutgoingContext(t.Context(), "authorization", auth), &computev1.WatchEventsRequest{})
	require.NoError(t, err)
	w.with(auth).send("POST", "/sandbox/"+box+"/execute", `{"command":["wait"]}`).problem(t, 401, "token_expired")
	for err == nil {
		_, err = stream.Recv()
	}
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	require.Equal(t, "token_expired", detail(t, err).GetReason())
	w.with(auth).send("GET", "/sandbox", "").problem(t, 401, "token_expired")
}

// An issuer that cannot be asked locks nobody out who has a key, and its tokens are told to come again.
func TestAnIssuerThatCannotBeAsked(t *testing.T) {
	w, i := issued(t)
	token := i.Token("ed", issuertest.Claims(nil))
	down := newWeb(t, func(c *app.Config) {
		c.JWT = app.JWT{JWKS: "http://127.0.0.1:1/keys", Issuer: issuertest.Name, Audience: issuertest.Audience}
	})
	a := down.with("Bearer "+token).send("GET", "/sandbox", "")
	a.problem(t, 503, "issuer_unavailable")
	require.Equal(t, "5", a.header.Get("Retry-After"))
	require.Equal(t, codes.Unavailable, status.Code(down.overGRPC("Bearer "+token)))
	down.send("GET", "/sandbox", "").is(t, 200)
	w.with("Bearer "+token).send("GET", "/sandbox", "").is(t, 200)
}

// Who takes tokens lets nobody in without a credential.
func TestTokensEndDevelopmentMode(t *testing.T) {
	i := issuertest.Start(t)
	w := newWorld(t, nil, func(c *app.Config) {
		c.JWT = app.JWT{JWKS: i.URL, Issuer: issuertest.Name, Audience: issuertest.Audience}
	})
	require.False(t, w.app.Development())
	_, err := w.ListSandboxes(t.Context(), &computev1.ListSandboxesRequest{})
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+i.Token("ed", issuertest.Claims(nil)))
	_, err = w.ListSandboxes(ctx, &computev1.ListSandboxesRequest{})
	require.NoError(t, err)
}
