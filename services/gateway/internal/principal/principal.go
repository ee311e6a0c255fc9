// Package principal says who a call comes from: a tenant's key, or anybody at all in development mode.
package principal

import (
	"context"
	"strings"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
)

// Principal is an authenticated caller.
type Principal struct {
	// Tenant that the credential is bound to; empty in development mode, where the request names it.
	Tenant string
	// Actor goes into events: key:<name> of a key in the file, key:<id> of one in the log, jwt:<subject> of a token, or dev.
	Actor string
	// Scopes are what the credential allows.
	Scopes tenant.Scopes
}

// Need refuses a caller who has none of the scopes.
func (p Principal) Need(any tenant.Scopes) error {
	if p.Scopes.Allows(any) {
		return nil
	}
	return fault.Newf(fault.PermissionDenied, fault.ReasonScope, "the credential does not have the scope that this needs: %s",
		strings.Join(any.Names(), " or "))
}

// Development reports whether no credential is asked for, so that a request's tenant stands as it is given.
func (p Principal) Development() bool { return p.Tenant == "" }

// Owner is the tenant that a new thing belongs to. A tenant in the request that is not the caller's is permission_denied; in
// development mode the request must name one.
func (p Principal) Owner(requested string) (string, error) {
	if p.Development() {
		if !subject.ValidTenant(requested) {
			return "", fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request does not name a tenant").
				WithFields(map[string]string{"tenant_id": "must be 1 to 64 of A-Z a-z 0-9 _ - (without API keys the request names the tenant)"})
		}
		return requested, nil
	}
	if requested != "" && requested != p.Tenant {
		return "", fault.New(fault.PermissionDenied, fault.ReasonTenantMismatch, "tenant_id is not the tenant of this credential").
			WithFields(map[string]string{"tenant_id": "leave it out, or give your own"})
	}
	return p.Tenant, nil
}

type key struct{}

// With puts the caller into ctx.
func With(ctx context.Context, p Principal) context.Context { return context.WithValue(ctx, key{}, p) }

// From takes it out. It fails with unauthorized where none was put in, so that a route without authentication is no open door.
func From(ctx context.Context) (Principal, error) {
	p, ok := ctx.Value(key{}).(Principal)
	if !ok {
		return Principal{}, fault.New(fault.Unauthorized, fault.ReasonKeyMissing, "this call needs a credential")
	}
	return p, nil
}
