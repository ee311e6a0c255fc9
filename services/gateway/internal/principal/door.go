package principal

import (
	"context"
	"strings"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/tenant"
)

// Door lets callers in: by a key of the file, by one of the log, or in development mode without any.
type Door struct {
	// File may be nil.
	File *Keys
	Ring *Ring
	// Strict ends development mode although there is no file: every call needs a key.
	Strict bool
}

// Development reports whether callers without a credential are let in.
func (d *Door) Development() bool { return !d.Strict && d.File.Development() }

// Admit says who calls, by the value of an authorization header. The context that it gives is ctx with the principal, and ends with
// that key's life: its cause is then the fault to answer. Call release when the call is over. Without a credential it is refused
// unless open is true and this is development mode; one that is given counts in any mode. Every refusal of a credential is the same.
func (d *Door) Admit(ctx context.Context, authorization string, open bool) (admitted context.Context, release func(), err error) {
	release = func() {}
	if authorization == "" {
		if open && d.Development() {
			return With(ctx, Principal{Actor: "dev", Scopes: tenant.All}), release, nil
		}
		return ctx, release, missing()
	}
	if !d.File.Development() {
		if p, err := d.File.Authenticate(authorization); err == nil {
			return With(ctx, p), release, nil
		}
	}
	key, ok := presented(authorization)
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

// presented is the key in `ApiKey KEY`. Another scheme presents none: an API key behind Bearer is no JWT.
func presented(authorization string) (string, bool) {
	scheme, key, ok := strings.Cut(authorization, " ")
	key = strings.TrimSpace(key)
	return key, ok && strings.EqualFold(scheme, Scheme) && key != ""
}

func missing() *fault.Error {
	return fault.New(fault.Unauthorized, fault.ReasonKeyMissing, "send `authorization: ApiKey KEY`")
}

func refused() *fault.Error {
	return fault.New(fault.Unauthorized, fault.ReasonKeyInvalid, "the credential is not valid; API keys are sent as `authorization: ApiKey KEY`")
}
