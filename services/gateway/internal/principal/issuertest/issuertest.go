// Package issuertest is an issuer of tokens for tests: it signs what it is told to, and serves its keys.
package issuertest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"
)

// Name and Audience of good tokens.
const (
	Name     = "https://issuer.example"
	Audience = "sandtrail"
)

// Issuer signs with the keys rsa, ec and ed, and serves them at URL.
type Issuer struct {
	URL string
	// Fetches counts how often its keys were asked for.
	Fetches atomic.Int64

	t       testing.TB
	mu      sync.Mutex
	private map[string]crypto.Signer
	served  []map[string]any
	// answer is served instead of the keys, with its status, where the status is not 0.
	status int
	answer string
}

var (
	rsaOnce sync.Once
	rsaKey  *rsa.PrivateKey
)

// Start serves until the test ends.
func Start(t testing.TB) *Issuer {
	t.Helper()
	rsaOnce.Do(func() {
		var err error
		rsaKey, err = rsa.GenerateKey(rand.Reader, 2048)
		require.NoError(t, err)
	})
	i := &Issuer{t: t, private: map[string]crypto.Signer{}}
	s := httptest.NewServer(http.HandlerFunc(i.serve))
	t.Cleanup(s.Close)
	i.URL = s.URL + "/keys"
	i.Add("rsa", rsaKey)
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	i.Add("ec", ec)
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	i.Add("ed", ed)
	return i
}

func (i *Issuer) serve(w http.ResponseWriter, _ *http.Request) {
	i.Fetches.Add(1)
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.status != 0 {
		w.WriteHeader(i.status)
		_, _ = w.Write([]byte(i.answer))
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"keys": i.served})
}

// Answer makes it serve something else than its keys; 0 is its keys again.
func (i *Issuer) Answer(status int, body string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.status, i.answer = status, body
}

// Add makes a key one of its own, and serves the public half.
func (i *Issuer) Add(kid string, key crypto.Signer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.private[kid] = key
	i.served = append(i.served, Public(kid, key.Public()))
}

// Remove serves a key no longer; tokens can still be signed with it.
func (i *Issuer) Remove(kid string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var left []map[string]any
	for _, k := range i.served {
		if k["kid"] != kid {
			left = append(left, k)
		}
	}
	i.served = left
}

// Key is the private half of a key.
func (i *Issuer) Key(kid string) crypto.Signer {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.private[kid]
}

// Claims are those of a good token of tenant acme with every scope, with changes: nil takes a claim out.
func Claims(changes map[string]any) jwt.MapClaims {
	now := time.Now()
	c := jwt.MapClaims{
		"iss": Name, "aud": Audience, "sub": "agent-7", "iat": now.Unix(), "nbf": now.Add(-time.Minute).Unix(), "exp": now.Add(time.Hour).Unix(),
		"tenant": "acme", "scope": "openid create inspect execute files stop",
	}
	maps.Copy(c, changes)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	return c
}

// Token signs claims with one of its keys, by the algorithm of its kind.
func (i *Issuer) Token(kid string, claims jwt.MapClaims) string {
	i.t.Helper()
	key := i.Key(kid)
	var method jwt.SigningMethod = jwt.SigningMethodRS256
	switch key.(type) {
	case *ecdsa.PrivateKey:
		method = jwt.SigningMethodES256
	case ed25519.PrivateKey:
		method = jwt.SigningMethodEdDSA
	}
	return Sign(i.t, method, key, map[string]any{"kid": kid}, claims)
}

// Sign signs claims with any key and method, and a header with changes: nil takes a field out.
func Sign(t testing.TB, method jwt.SigningMethod, key any, header map[string]any, claims jwt.MapClaims) string {
	t.Helper()
	token := jwt.NewWithClaims(method, claims)
	maps.Copy(token.Header, header)
	maps.DeleteFunc(token.Header, func(_ string, v any) bool { return v == nil })
	text, err := token.SignedString(key)
	require.NoError(t, err)
	return text
}

// Public is a public key as a JWKS has it.
func Public(kid string, key crypto.PublicKey) map[string]any {
	encode := base64.RawURLEncoding.EncodeToString
	switch k := key.(type) {
	case *rsa.PublicKey:
		return map[string]any{"kty": "RSA", "kid": kid, "use": "sig", "alg": "RS256", "n": encode(k.N.Bytes()), "e": encode(big.NewInt(int64(k.E)).Bytes())}
	case *ecdsa.PublicKey:
		point, err := k.Bytes()
		if err != nil {
			panic(err)
		}
		half := (len(point) - 1) / 2
		return map[string]any{"kty": "EC", "kid": kid, "crv": k.Params().Name, "x": encode(point[1 : 1+half]), "y": encode(point[1+half:])}
	case ed25519.PublicKey:
		return map[string]any{"kty": "OKP", "kid": kid, "crv": "Ed25519", "x": encode(k)}
	default:
		panic("a kind of key that tests do not have")
	}
}
