package edge

import (
	"context"
	"net/http"

	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
	"github.com/sandtrail/sandtrail/services/gateway/internal/stored"
)

// Admission is what a call of an HTTP API must pass before its handler.
type Admission struct {
	// Credential as principal.Door takes it.
	Credential string
	// Local says for whom a caller without a credential acts in development mode; nil: nobody is let in without one.
	Local func(principal.Principal) (principal.Principal, error)
	// Scopes of which the caller needs one.
	Scopes tenant.Scopes
	// Check refuses a request that cannot be meant, by its head.
	Check func() error
}

// Admitted is a caller who was let in.
type Admitted struct {
	principal.Principal
	// Memory is what its tenant may hold of the memory of all HTTP calls.
	Memory stored.Share
}

// Admit lets a caller in, or says why not: its credential first, then its scopes, then its request, and the log must be within reach. The
// context is ctx with the principal, and ends with the credential. release must be called when the call is over, whatever the error is.
func (e *Edge) Admit(ctx context.Context, a Admission) (admitted context.Context, who Admitted, release func(), err error) {
	ctx, release, err = e.Door.Admit(ctx, a.Credential, a.Local != nil)
	if err != nil {
		return ctx, who, release, err
	}
	if who.Principal, err = principal.From(ctx); err != nil {
		return ctx, who, release, err
	}
	if who.Development() && a.Local != nil {
		if who.Principal, err = a.Local(who.Principal); err != nil {
			return ctx, who, release, err
		}
		ctx = principal.With(ctx, who.Principal)
	}
	who.Memory = e.shares.Of(who.Tenant)
	if err := who.Need(a.Scopes); err != nil {
		return ctx, who, release, err
	}
	if err := a.Check(); err != nil {
		return ctx, who, release, err
	}
	return ctx, who, release, e.Reachable(ctx)
}

// Guard calls do and makes a fault of its panic, unless that is how a connection is cut.
func (e *Edge) Guard(ctx context.Context, do func() error) (err error) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			panic(p)
		default:
			err = e.Recovered(ctx, p)
		}
	}()
	return do()
}
