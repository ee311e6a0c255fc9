package principal

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// jwksEvery is how often keys of an issuer are fetched again, jwksGood how long an answer counts while no newer one comes.
	jwksEvery, jwksGood = 5 * time.Minute, time.Hour
	// jwksPause is the least time between two fetches: tokens with made-up key ids cost an issuer no more than that.
	jwksPause = 10 * time.Second
	// jwksTime bounds one fetch, jwksBytes and jwksKeys what it may bring.
	jwksTime  = 3 * time.Second
	jwksBytes = 256 << 10
	jwksKeys  = 100
	// Sizes of RSA keys, in bits: smaller ones can be broken, larger ones cost more than a caller may make us spend.
	minRSA, maxRSA = 2048, 8192
)

// signer is a key that an issuer signs with, and the one algorithm that it is good for.
type signer struct {
	alg string
	key crypto.PublicKey
}

// signers are the public keys of one issuer, fetched from its JWKS and kept. Methods may be called concurrently.
type signers struct {
	url    string
	client *http.Client
	log    *slog.Logger
	now    func() time.Time

	mu sync.Mutex
	// keys by their id; at is when they were fetched, tried when the last fetch began.
	keys      map[string]signer
	at, tried time.Time
	// fetching is closed when the fetch under way is over; nil while none is.
	fetching chan struct{}
}

func newSigners(url string, log *slog.Logger) *signers {
	return &signers{
		url: url, log: log, now: time.Now,
		client: &http.Client{
			Timeout: jwksTime,
			// One request in minutes keeps no connection.
			Transport: &http.Transport{
				Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10,
				TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
			},
			// Keys are trusted for where they come from; another place is another one to trust.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// errNoKeys: no answer of the issuer counts now.
var errNoKeys = errors.New("the issuer's keys are not known now")

// find gives the key with an id. One that is not known is asked for once, unless that was done a moment ago; all who want one
// meanwhile wait for the same answer. false: the issuer has no such key. An error: it cannot be asked, or ctx ended.
func (s *signers) find(ctx context.Context, kid string) (signer, bool, error) {
	for asked := false; ; asked = true {
		s.mu.Lock()
		now := s.now()
		good := !s.at.IsZero() && now.Sub(s.at) < jwksGood
		k, ok := s.keys[kid]
		switch {
		case good && (ok || asked):
			s.mu.Unlock()
			return k, ok, nil
		case s.fetching == nil && (asked || now.Sub(s.tried) < jwksPause):
			s.mu.Unlock()
			if good {
				return signer{}, false, nil
			}
			return signer{}, false, errNoKeys
		}
		over := s.begin(now)
		s.mu.Unlock()
		select {
		case <-over:
		case <-ctx.Done():
			return signer{}, false, ctx.Err()
		}
	}
}

// begin starts a fetch unless one is under way. Call it with the lock held. It goes on without who began it, because others wait for it.
func (s *signers) begin(now time.Time) <-chan struct{} {
	if s.fetching != nil {
		return s.fetching
	}
	over := make(chan struct{})
	s.fetching, s.tried = over, now
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), jwksTime)
		defer cancel()
		keys, err := s.fetch(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil {
			s.log.Warn("the issuer's keys cannot be fetched", "url", s.url, "error", err)
		} else {
			s.keys, s.at = keys, s.now()
		}
		s.fetching = nil
		close(over)
	}()
	return over
}

// run fetches the keys now and again until ctx ends: a key that the issuer takes back stops counting within jwksEvery.
func (s *signers) run(ctx context.Context) {
	tick := time.NewTicker(jwksEvery)
	defer tick.Stop()
	for {
		s.mu.Lock()
		over := s.begin(s.now())
		s.mu.Unlock()
		<-over
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *signers) fetch(ctx context.Context) (map[string]signer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	res, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the answer is %s", res.Status)
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, jwksBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > jwksBytes {
		return nil, fmt.Errorf("the answer has more than %d bytes", jwksBytes)
	}
	keys, ignored, err := parseJWKS(data)
	for _, why := range ignored {
		s.log.Debug("a key of the issuer is not used", "url", s.url, "why", why)
	}
	return keys, err
}

// jwk is one member of a JWKS.
type jwk struct {
	Kty string   `json:"kty"`
	Kid string   `json:"kid"`
	Use string   `json:"use"`
	Alg string   `json:"alg"`
	Ops []string `json:"key_ops"`
	Crv string   `json:"crv"`
	N   string   `json:"n"`
	E   string   `json:"e"`
	X   string   `json:"x"`
	Y   string   `json:"y"`
	// D is there in private keys alone.
	D string `json:"d"`
}

// parseJWKS gives the keys that can check signatures, by id, and why others are left out. A set without any is an error: taking it would
// lock everybody out for what is likely a mistake. An id that stands there twice is none: which key is meant is not known.
func parseJWKS(data []byte) (keys map[string]signer, ignored []string, err error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, nil, fmt.Errorf("it is no JWKS: %w", err)
	}
	if len(set.Keys) > jwksKeys {
		return nil, nil, fmt.Errorf("it has more than %d keys", jwksKeys)
	}
	keys = map[string]signer{}
	twice := map[string]bool{}
	for i, raw := range set.Keys {
		var k jwk
		if err := json.Unmarshal(raw, &k); err != nil {
			ignored = append(ignored, fmt.Sprintf("keys[%d] cannot be read", i))
			continue
		}
		s, err := k.signer()
		if err != nil {
			ignored = append(ignored, fmt.Sprintf("keys[%d] %v", i, err))
			continue
		}
		if _, again := keys[k.Kid]; again {
			twice[k.Kid] = true
			ignored = append(ignored, fmt.Sprintf("keys[%d] has the id of another", i))
		}
		keys[k.Kid] = s
	}
	for kid := range twice {
		delete(keys, kid)
	}
	if len(keys) == 0 {
		return nil, ignored, errors.New("it has no key that can be used: RS256, ES256 or EdDSA, with a kid")
	}
	return keys, ignored, nil
}

// signer gives the key and the algorithm that its kind is for.
func (k jwk) signer() (signer, error) {
	switch {
	case k.Kid == "" || len(k.Kid) > maxKid:
		return signer{}, errors.New("has no id, or one that is too long")
	case k.D != "":
		return signer{}, errors.New("is private")
	case k.Use != "" && k.Use != "sig":
		return signer{}, errors.New("is not for signatures")
	case len(k.Ops) > 0 && !slices.Contains(k.Ops, "verify"):
		return signer{}, errors.New("is not for checking signatures")
	}
	var s signer
	var err error
	switch {
	case k.Kty == "RSA":
		s, err = k.rsa()
	case k.Kty == "EC" && k.Crv == "P-256":
		s, err = k.ec()
	case k.Kty == "OKP" && k.Crv == "Ed25519":
		s, err = k.ed()
	default:
		return signer{}, errors.New("is of a kind that is not used")
	}
	if err == nil && k.Alg != "" && k.Alg != s.alg {
		err = errors.New("is for another algorithm")
	}
	return s, err
}

// maxKid bounds the id of a key, in bytes.
const maxKid = 256

func (k jwk) rsa() (signer, error) {
	n, e := number(k.N), number(k.E)
	if n == nil || e == nil || n.BitLen() < minRSA || n.BitLen() > maxRSA || n.Bit(0) == 0 || !e.IsInt64() || e.Int64() < 3 || e.Int64() >= 1<<31 || e.Bit(0) == 0 {
		return signer{}, fmt.Errorf("is no RSA key of %d to %d bits", minRSA, maxRSA)
	}
	return signer{"RS256", &rsa.PublicKey{N: n, E: int(e.Int64())}}, nil
}

func (k jwk) ec() (signer, error) {
	x, y := octets(k.X, 32), octets(k.Y, 32)
	if x == nil || y == nil {
		return signer{}, errors.New("is no point of P-256")
	}
	key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), slices.Concat([]byte{4}, x, y))
	if err != nil {
		return signer{}, errors.New("is no point of P-256")
	}
	return signer{"ES256", key}, nil
}

func (k jwk) ed() (signer, error) {
	x := octets(k.X, ed25519.PublicKeySize)
	if x == nil {
		return signer{}, errors.New("is no Ed25519 key")
	}
	return signer{"EdDSA", ed25519.PublicKey(x)}, nil
}

// octets decodes exactly n bytes; nil where they are not.
func octets(s string, n int) []byte {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) != n {
		return nil
	}
	return b
}

func number(s string) *big.Int {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) == 0 || len(b) > maxRSA/8+1 {
		return nil
	}
	return new(big.Int).SetBytes(b)
}
