package principal

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/tenant"
)

// Door lets callers in: by a key of the file, by one of the log, by a token of the issuer, or in development mode without any.
type Door struct {
	// File may be nil.
	File *Keys
	Ring *Ring
	// JWT may be nil: no token is taken.
	JWT *JWTs
	// Strict ends development mode although there is neither a file nor an issuer: every call needs a credential.
	Strict bool
}

// Development reports whether callers without a credential are let in.
func (d *Door) Development() bool { return !d.Strict && d.JWT == nil && d.File.Development() }

// Schemes are the ways to present a credential, as a challenge names them.
func (d *Door) Schemes() string {
	if d.JWT == nil {
		return Scheme
	}
	return Scheme + ", " + SchemeJWT
}

// Run keeps keys and issuer in view until ctx ends.
func (d *Door) Run(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { d.Ring.Run(ctx) })
	all.Go(func() { d.JWT.Run(ctx) })
	all.Wait()
}

// Admit says who calls, by the value of an authorization header. The context that it gives is ctx with the principal, and ends with
// that credential's life: its cause is then the fault to answer. Call release when the call is over. Without a credential it is refused
// unless open is true and this is development mode; one that is given counts in any mode. Every refusal of a credential is the same, but
// for a good token whose time is over.
func (d *Door) Admit(ctx context.Context, authorization string, open bool) (admitted context.Context, release func(), err error) {
	release = func() {}
	if authorization == "" {
		if open && d.Development() {
			return With(ctx, Principal{Actor: "dev", Scopes: tenant.All}), release, nil
		}
		return ctx, release, missing()
	}
	if token, ok := presentedAs(SchemeJWT, authorization); ok {
		return d.admitJWT(ctx, token)
	}
	if !d.File.Development() {
		if p, err := d.File.Authenticate(authorization); err == nil {
			return With(ctx, p), release, nil
		}
	}
	key, ok := presentedAs(Scheme, authorization)
	if !ok {
		return ctx, release, refused()
	}
	h, err := d.Ring.find(ctx, tenant.Digest(key))
	switch {
	case err != nil:
		return ctx, release, err
	case h == nil:
		return ctx, release, refused()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(h.valid, func() { cancel(context.Cause(h.valid)) })
	p := Principal{Tenant: h.tenant, Actor: "key:" + h.key.ID, Scopes: h.key.Scopes}
	return With(ctx, p), func() { stop(); cancel(nil) }, nil
}

// admitJWT is Admit for a token.
func (d *Door) admitJWT(ctx context.Context, token string) (admitted context.Context, release func(), err error) {
	if d.JWT == nil {
		return ctx, func() {}, refused()
	}
	p, end, err := d.JWT.authenticate(ctx, token)
	if err != nil {
		return ctx, func() {}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(end.Sub(d.JWT.now()), func() { cancel(expired()) })
	return With(ctx, p), func() { timer.Stop(); cancel(nil) }, nil
}

// presentedAs is the credential behind a scheme. Behind another one it is none: an API key behind Bearer is no JWT, and the other way round.
func presentedAs(scheme, authorization string) (string, bool) {
	given, value, ok := strings.Cut(authorization, " ")
	value = strings.TrimSpace(value)
	return value, ok && strings.EqualFold(given, scheme) && value != ""
}

func missing() *fault.Error {
	return fault.New(fault.Unauthorized, fault.ReasonKeyMissing, "send `authorization: ApiKey KEY`")
}

func refused() *fault.Error {
	return fault.New(fault.Unauthorized, fault.ReasonKeyInvalid, "the credential is not valid; API keys are sent as `authorization: ApiKey KEY`")
}
