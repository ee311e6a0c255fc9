package principal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
)

// SchemeJWT is how a JWT is presented: `authorization: Bearer JWT`.
const SchemeJWT = "Bearer"

// maxJWT bounds a token, in bytes.
const maxJWT = 8 << 10

// MaxSkew is the most by which the clocks of issuer and gateway may differ.
const MaxSkew = 5 * time.Minute

// algorithms that are taken. Each key is good for one of them, so that no token chooses how it is checked.
var algorithms = []string{"RS256", "ES256", "EdDSA"}

// JWTConfig says whose tokens are taken and what their claims mean. Without a JWKS none are.
type JWTConfig struct {
	// JWKS is the URL of the issuer's keys: https, or http on loopback.
	JWKS string
	// Issuer and Audience are what `iss` must be and `aud` must have.
	Issuer, Audience string
	// Skew by which clocks may differ: 30 s unless set, at most MaxSkew.
	Skew time.Duration
	// TenantClaim and ScopeClaim name the claims that say both: by name, or by JSON pointer where the name begins with a slash.
	// "tenant" and "scope" unless set. The tenant is a string; scopes are a string of words or an array of strings.
	TenantClaim, ScopeClaim string
	// Tenants gives the tenant for a value of its claim; where it is empty the value is the tenant.
	Tenants map[string]string
	// Scopes gives the scopes, joined by `+`, for a value of their claim; where it is empty the values are names of scopes. Values
	// that mean nothing are passed over: tokens have others for other services.
	Scopes map[string]string
}

// Enabled reports whether any token may be good.
func (c JWTConfig) Enabled() bool { return c.JWKS != "" }

func (c JWTConfig) withDefaults() JWTConfig {
	if c.Skew == 0 {
		c.Skew = 30 * time.Second
	}
	if c.TenantClaim == "" {
		c.TenantClaim = "tenant"
	}
	if c.ScopeClaim == "" {
		c.ScopeClaim = "scope"
	}
	return c
}

// Validate reports every mistake at once.
func (c JWTConfig) Validate() error {
	if !c.Enabled() {
		if c.Issuer != "" || c.Audience != "" {
			return errors.New("jwks-url: is needed for tokens of an issuer")
		}
		return nil
	}
	c = c.withDefaults()
	var errs []error
	u, err := url.Parse(c.JWKS)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())) {
		errs = append(errs, errors.New("jwks-url: must be an https URL without credentials (http on loopback)"))
	}
	if c.Issuer == "" {
		errs = append(errs, errors.New("jwt-issuer: is needed beside jwks-url"))
	}
	if c.Audience == "" {
		errs = append(errs, errors.New("jwt-audience: is needed beside jwks-url: a token for another service is none for this one"))
	}
	if c.Skew < 0 || c.Skew > MaxSkew {
		errs = append(errs, fmt.Errorf("jwt-skew: %s is not 0 to %s", c.Skew, MaxSkew))
	}
	for value, id := range c.Tenants {
		if !subject.ValidTenant(id) {
			errs = append(errs, fmt.Errorf("jwt-tenants: %q is for no tenant", value))
		}
	}
	for value, names := range c.Scopes {
		if _, err := tenant.ParseScopes(strings.Split(names, "+")); err != nil {
			errs = append(errs, fmt.Errorf("jwt-scopes: %q: %w", value, err))
		}
	}
	return errors.Join(errs...)
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// JWTs authenticates callers by the tokens of one issuer.
type JWTs struct {
	config  JWTConfig
	signers *signers
	parser  *jwt.Parser
	now     func() time.Time
}

// NewJWTs is nil where the configuration, which must be valid, takes no tokens.
func NewJWTs(c JWTConfig, log *slog.Logger) *JWTs {
	if !c.Enabled() {
		return nil
	}
	c = c.withDefaults()
	j := &JWTs{config: c, signers: newSigners(c.JWKS, log), now: time.Now}
	j.parser = jwt.NewParser(
		jwt.WithValidMethods(algorithms), jwt.WithStrictDecoding(), jwt.WithJSONNumber(), jwt.WithTimeFunc(func() time.Time { return j.now() }),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(c.Skew), jwt.WithIssuer(c.Issuer), jwt.WithAudience(c.Audience),
	)
	return j
}

// Run keeps the issuer's keys fresh until ctx ends.
func (j *JWTs) Run(ctx context.Context) {
	if j != nil {
		j.signers.run(ctx)
	}
}

// authenticate says who a token is for, and when it ends. A token whose signature is good and whose time is over is told so; every other
// refusal is the same.
func (j *JWTs) authenticate(ctx context.Context, token string) (Principal, time.Time, error) {
	if len(token) > maxJWT {
		return Principal{}, time.Time{}, refused()
	}
	claims := jwt.MapClaims{}
	var unknown error
	_, err := j.parser.ParseWithClaims(token, claims, func(t *jwt.Token) (any, error) {
		kid, err := head(t)
		if err != nil {
			return nil, err
		}
		k, ok, err := j.signers.find(ctx, kid)
		switch {
		case err != nil:
			unknown = err
			return nil, err
		case !ok:
			return nil, errors.New("the issuer has no such key")
		case k.alg != t.Method.Alg():
			return nil, errors.New("the key is for another algorithm")
		}
		return k.key, nil
	})
	switch {
	case ctx.Err() != nil && unknown != nil:
		return Principal{}, time.Time{}, ctx.Err()
	case unknown != nil:
		return Principal{}, time.Time{}, fault.New(fault.Unavailable, fault.ReasonIssuer,
			"the issuer of the token cannot be asked for its keys; try again").WithRetry(5 * time.Second)
	case errors.Is(err, jwt.ErrTokenExpired) && onlyExpired(err):
		return Principal{}, time.Time{}, expired()
	case err != nil:
		return Principal{}, time.Time{}, refused()
	}
	return j.caller(claims)
}

// onlyExpired: a token that is another's too is not told more than others.
func onlyExpired(err error) bool {
	for _, other := range []error{
		jwt.ErrTokenInvalidIssuer, jwt.ErrTokenInvalidAudience, jwt.ErrTokenNotValidYet, jwt.ErrTokenUsedBeforeIssued, jwt.ErrTokenRequiredClaimMissing,
		jwt.ErrTokenSignatureInvalid, jwt.ErrTokenUnverifiable, jwt.ErrTokenMalformed, jwt.ErrInvalidType,
	} {
		if errors.Is(err, other) {
			return false
		}
	}
	return true
}

// head gives the id of the key that a token names. What the header demands and we do not know is refused; so is a token of another kind.
func head(t *jwt.Token) (kid string, err error) {
	if _, critical := t.Header["crit"]; critical {
		return "", errors.New("it has extensions that must be understood")
	}
	if typ, given := t.Header["typ"]; given {
		s, ok := typ.(string)
		s = strings.TrimPrefix(strings.ToLower(s), "application/")
		if !ok || s != "jwt" && s != "at+jwt" {
			return "", errors.New("it is a token of another kind")
		}
	}
	kid, ok := t.Header["kid"].(string)
	if !ok || kid == "" || len(kid) > maxKid {
		return "", errors.New("it names no key")
	}
	return kid, nil
}

// caller maps claims to a principal.
func (j *JWTs) caller(claims jwt.MapClaims) (Principal, time.Time, error) {
	end, err := claims.GetExpirationTime()
	if err != nil || end == nil {
		return Principal{}, time.Time{}, refused()
	}
	sub, err := claims.GetSubject()
	if err != nil || sub == "" {
		return Principal{}, time.Time{}, refused()
	}
	id, _ := claim(claims, j.config.TenantClaim).(string)
	if len(j.config.Tenants) > 0 {
		id = j.config.Tenants[id]
	}
	if !subject.ValidTenant(id) {
		return Principal{}, time.Time{}, refused()
	}
	p := Principal{Tenant: id, Actor: actor(sub), Scopes: j.scopes(claim(claims, j.config.ScopeClaim))}
	return p, end.Add(j.config.Skew), nil
}

// actor names who a token is about. What could not stand in the header of an event is named by its digest.
func actor(sub string) string {
	if subject.ValidToken(sub) {
		return "jwt:" + sub
	}
	sum := sha256.Sum256([]byte(sub))
	return "jwt:sha256:" + hex.EncodeToString(sum[:16])
}

// scopes are those that the values of a claim mean.
func (j *JWTs) scopes(v any) tenant.Scopes {
	var values []string
	switch v := v.(type) {
	case string:
		values = strings.Fields(v)
	case []any:
		for _, one := range v {
			if s, ok := one.(string); ok {
				values = append(values, s)
			}
		}
	}
	all := tenant.None
	for _, value := range values {
		names := []string{value}
		if len(j.config.Scopes) > 0 {
			names = strings.Split(j.config.Scopes[value], "+")
		}
		if s, err := tenant.ParseScopes(names); err == nil {
			all |= s
		}
	}
	return all
}

// claim gives the value of a claim by its name, or by JSON pointer where the name begins with a slash; nil where it is not there.
func claim(claims map[string]any, name string) any {
	if !strings.HasPrefix(name, "/") {
		return claims[name]
	}
	var at any = claims
	for part := range strings.SplitSeq(name[1:], "/") {
		members, ok := at.(map[string]any)
		if !ok {
			return nil
		}
		at = members[strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")]
	}
	return at
}

func expired() *fault.Error {
	return fault.New(fault.Unauthorized, fault.ReasonTokenExpired, "the token's time is over; get a new one and repeat the request")
}
