package usecase

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/services/gateway/internal/calls"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

const (
	// maxIssued bounds the keys that a tenant ever had while more can be made over an API: every gateway holds all of them in memory. Operators
	// may go on.
	maxIssued = 4096
	// minPrefix is how much of a key has to be said to revoke it, its head included.
	minPrefix = 8
)

// Issue makes a key of the caller's tenant, which works at once. What is returned is the only copy. The tenant becomes one that has keys where it
// was none.
func (u *UseCases) Issue(ctx context.Context, p principal.Principal, name string, allowed scopes.Scopes) (scopes.Secret, scopes.Key, error) {
	secret, at := scopes.NewToken(), time.Now()
	t, err := u.administer(ctx, p, func(t scopes.Tenant) ([]scopes.Command, error) {
		if len(t.Keys) >= maxIssued {
			return nil, fault.Newf(fault.ResourceExhausted, fault.ReasonQuota, "the tenant had %d keys, those that work no longer included; an operator can make more", len(t.Keys))
		}
		create := scopes.CreateKey{Secret: secret, Name: name, Scopes: allowed, At: at}
		if t.Exists() {
			return []scopes.Command{create}, nil
		}
		return []scopes.Command{scopes.CreateTenant{}, create}, nil
	})
	if err != nil {
		return scopes.Secret{}, scopes.Key{}, err
	}
	k, there := t.Key(secret.ID)
	if !there {
		return scopes.Secret{}, scopes.Key{}, fault.New(fault.Internal, fault.ReasonInternal, "the key was made and is not in the log; make another one")
	}
	return secret, k, nil
}

// Issued are the keys of the caller's tenant that work, oldest first.
func (u *UseCases) Issued(ctx context.Context, p principal.Principal) ([]scopes.Key, error) {
	t, err := u.administer(ctx, p, func(scopes.Tenant) ([]scopes.Command, error) { return nil, nil })
	return working(t), err
}

// Revoke ends the one key of the caller's tenant that works and begins with prefix, or has it as its id: it works nowhere a second later, and what
// is open with it ends. Where several begin so none is ended.
func (u *UseCases) Revoke(ctx context.Context, p principal.Principal, prefix string) (scopes.Key, error) {
	var ended scopes.Key
	_, err := u.administer(ctx, p, func(t scopes.Tenant) ([]scopes.Command, error) {
		var found []scopes.Key
		for _, k := range working(t) {
			if k.ID == prefix || len(prefix) >= minPrefix && strings.HasPrefix(k.Prefix, prefix) {
				found = append(found, k)
			}
		}
		switch {
		case len(found) == 0:
			return nil, fault.Newf(fault.NotFound, fault.ReasonKeyNotFound, "the tenant has no key that works and begins with %.20q (%d characters at least)", prefix, minPrefix)
		case len(found) > 1:
			return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request is not valid").
				WithFields(map[string]string{"prefix": fmt.Sprintf("is how %d keys begin; say more of it, or an id", len(found))})
		}
		ended = found[0]
		return []scopes.Command{scopes.RevokeKeys{IDs: []string{ended.ID}, At: time.Now()}}, nil
	})
	return ended, err
}

// working are the keys of a tenant that are good now.
func working(t scopes.Tenant) []scopes.Key {
	var all []scopes.Key
	for _, k := range t.Keys {
		if k.Works(time.Now()) {
			all = append(all, k)
		}
	}
	return all
}

// administer decides commands one after the other about the caller's own tenant, appends what they lead to at once, and returns the tenant
// behind it.
func (u *UseCases) administer(ctx context.Context, p principal.Principal, choose func(scopes.Tenant) ([]scopes.Command, error)) (scopes.Tenant, error) {
	if err := p.Need(scopes.Admin); err != nil {
		return scopes.Tenant{}, err
	}
	tenant, err := p.Owner("")
	if err != nil {
		return scopes.Tenant{}, err
	}
	agg, command, at := subject.Tenant(tenant), ids.New(), time.Now()
	calls.About(ctx, agg)
	h, err := eventlog.Execute(ctx, u.log, agg, func(h eventlog.History) ([]envelope.Event, error) {
		t := scopes.Fold(h)
		commands, err := choose(t)
		if err != nil {
			return nil, err
		}
		return decided(t, tenant, command, p.Actor, at, commands)
	})
	if err != nil {
		return scopes.Tenant{}, err
	}
	return scopes.Fold(h), nil
}

// decided are the events of commands, each of which finds what those before it led to.
func decided(t scopes.Tenant, tenant, command, actor string, at time.Time, commands []scopes.Command) ([]envelope.Event, error) {
	var all []envelope.Event
	for i, c := range commands {
		bodies, err := scopes.Decide(t, c)
		if err != nil {
			return nil, err
		}
		for _, e := range scopes.Events(tenant, ids.Event(command, i), actor, at, bodies...) {
			e.Cause = command
			all = append(all, e)
			t = t.Evolve(envelope.Recorded{Meta: e.Meta, Body: e.Body})
		}
	}
	return all, nil
}
