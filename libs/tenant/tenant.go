// Package tenant decides about tenants, their API keys, quotas and budgets, and says from their events which there are. It is pure but for NewSecret:
// time and ids come in with the commands. A command that has been carried out already decides nothing and is no error.
package tenant

import (
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

const (
	// MaxKeys bounds the keys of a tenant that work at one time.
	MaxKeys = 256
	// MaxEvents bounds what a tenant may add to its history: behind it no key is created, so that those that are can be revoked. The log reads no
	// history of more than 100,000.
	MaxEvents = 50_000
	// MaxName bounds the name of a tenant or key, in bytes.
	MaxName = 128
	// MaxNote bounds why keys were revoked, in bytes.
	MaxNote = 1024
)

// Tenant is a tenant as its events tell it.
type Tenant struct {
	ID, Name string
	// CreatedAt is zero for a tenant that is not there.
	CreatedAt time.Time
	// Keys, oldest first, those that work no longer included.
	Keys []Key
	// Quotas are its own limits; for the others the deployment's hold.
	Quotas Quotas
	// Budget is what its months may cost; what they reached is told by another aggregate: FoldBudget.
	Budget Budget
	// Seq is the stream sequence of its last event, Events how many it has.
	Seq    uint64
	Events int
}

// Exists reports whether it was created.
func (t Tenant) Exists() bool { return !t.CreatedAt.IsZero() }

// Key gives the key with an id.
func (t Tenant) Key(id string) (Key, bool) {
	i := slices.IndexFunc(t.Keys, func(k Key) bool { return k.ID == id })
	if i < 0 {
		return Key{}, false
	}
	return t.Keys[i], true
}

// Fold makes the state from a history. Events of types that this version does not know are left out: they make no key work.
func Fold(h eventlog.History) Tenant {
	t := Tenant{ID: h.Aggregate.Tenant}
	for _, e := range h.Events {
		t = t.Evolve(e)
	}
	return t
}

// Evolve is the state behind e. t is left as it is.
func (t Tenant) Evolve(e envelope.Recorded) Tenant {
	t.Seq, t.Events = e.Seq, t.Events+1
	switch b := e.Body.(type) {
	case *eventsv1.TenantCreated:
		t.Name, t.CreatedAt = b.GetName(), e.Time
	case *eventsv1.KeyCreated:
		t.Keys = slices.Clone(t.Keys)
		if i := slices.IndexFunc(t.Keys, func(k Key) bool { return k.ID == b.GetReplaces() }); i >= 0 {
			t.Keys[i].end(timeOf(b.GetReplacedUntil()))
			t.Keys[i].ReplacedBy = b.GetKeyId()
		}
		k := Key{
			ID: b.GetKeyId(), Name: b.GetName(), Prefix: b.GetPrefix(), Scopes: known(b.GetScopes()), CreatedAt: e.Time,
			ExpiresAt: timeOf(b.GetExpiresAt()),
		}
		if copy(k.Digest[:], b.GetSha256()) != len(k.Digest) {
			return t // nothing that a caller could send has such a digest
		}
		t.Keys = append(t.Keys, k)
	case *eventsv1.KeyRevoked:
		t.Keys = slices.Clone(t.Keys)
		for i := range t.Keys {
			if slices.Contains(b.GetKeyIds(), t.Keys[i].ID) {
				t.Keys[i].end(e.Time)
				t.Keys[i].Revoked = true
			}
		}
	case *eventsv1.QuotaSet:
		t.Quotas = quotasOf(b)
	case *eventsv1.BudgetSet, *eventsv1.BudgetRemoved:
		t.Budget = t.Budget.evolve(e)
	}
	return t
}

// end is what a revocation does: an earlier one stands.
func (k *Key) end(at time.Time) {
	if k.RevokedAt.IsZero() || at.Before(k.RevokedAt) {
		k.RevokedAt = at
	}
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// Command is one of the structs below.
type Command interface {
	decide(t Tenant) ([]proto.Message, error)
}

// CreateTenant makes a tenant. One that is there stays as it is.
type CreateTenant struct{ Name string }

// CreateKey makes a key of a tenant that is there. With Replaces it takes over from a key that works, which then ends at
// ReplacedUntil at the latest.
type CreateKey struct {
	Secret        Secret
	Name          string
	Scopes        Scopes
	At, ExpiresAt time.Time
	Replaces      string
	ReplacedUntil time.Time
}

// RevokeKeys ends keys, all of the tenant's where none is named. Those that do not work any more are left as they are.
type RevokeKeys struct {
	IDs  []string
	Note string
	At   time.Time
}

// Decide says what a command leads to, or why it is refused: fault.NotFound for a tenant or key that is not there.
func Decide(t Tenant, c Command) ([]proto.Message, error) { return c.decide(t) }

func (c CreateTenant) decide(t Tenant) ([]proto.Message, error) {
	if err := text("name", c.Name, MaxName); err != nil || t.Exists() {
		return nil, err
	}
	return []proto.Message{&eventsv1.TenantCreated{Name: c.Name}}, nil
}

func (c CreateKey) decide(t Tenant) ([]proto.Message, error) {
	if err := text("name", c.Name, MaxName); err != nil {
		return nil, err
	}
	working := 0
	for _, k := range t.Keys {
		if k.Works(c.At) {
			working++
		}
	}
	old, there := t.Key(c.Replaces)
	_, taken := t.Key(c.Secret.ID)
	switch {
	case !t.Exists():
		return nil, notThere(t.ID)
	case taken:
		return nil, nil
	case c.Scopes == None:
		return nil, invalid("scopes", "at least one is needed")
	case !c.ExpiresAt.IsZero() && !c.ExpiresAt.After(c.At):
		return nil, invalid("expires_at", "is in the past")
	case c.Replaces != "" && !there:
		return nil, noKey(c.Replaces)
	case c.Replaces != "" && !old.Works(c.At):
		return nil, fault.Newf(fault.FailedPrecondition, fault.ReasonIllegalState, "key %s does not work any more; create a new one", c.Replaces)
	case working >= MaxKeys:
		return nil, fault.Newf(fault.ResourceExhausted, fault.ReasonQuota, "tenant %s has %d keys that work, as many as it may; revoke one", t.ID, working)
	case t.Events >= MaxEvents:
		return nil, fault.Newf(fault.ResourceExhausted, fault.ReasonQuota, "tenant %s has %d events, as many as it may: no more keys are created, those that are can be revoked",
			t.ID, MaxEvents)
	}
	digest := c.Secret.Digest()
	e := &eventsv1.KeyCreated{
		KeyId: c.Secret.ID, Name: c.Name, Prefix: c.Secret.Prefix(), Sha256: digest[:], Scopes: c.Scopes.Names(), ExpiresAt: stamp(c.ExpiresAt),
	}
	if c.Replaces != "" {
		e.Replaces, e.ReplacedUntil = c.Replaces, timestamppb.New(maxTime(c.ReplacedUntil, c.At))
	}
	return []proto.Message{e}, nil
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (c RevokeKeys) decide(t Tenant) ([]proto.Message, error) {
	if !t.Exists() {
		return nil, notThere(t.ID)
	}
	if err := text("note", c.Note, MaxNote); err != nil {
		return nil, err
	}
	for _, id := range c.IDs {
		if _, there := t.Key(id); !there {
			return nil, noKey(id)
		}
	}
	e := &eventsv1.KeyRevoked{Note: c.Note}
	for _, k := range t.Keys {
		if k.Works(c.At) && (len(c.IDs) == 0 || slices.Contains(c.IDs, k.ID)) {
			e.KeyIds = append(e.KeyIds, k.ID)
		}
	}
	if len(e.GetKeyIds()) == 0 {
		return nil, nil
	}
	return []proto.Message{e}, nil
}

// Events are decided bodies as they are appended, by an actor at a time.
func Events(tenant, commandID, actor string, at time.Time, bodies ...proto.Message) []envelope.Event {
	var all []envelope.Event
	for i, b := range bodies {
		all = append(all, envelope.Event{
			Meta: envelope.Meta{ID: ids.Event(commandID, i), Tenant: tenant, Actor: actor, Cause: commandID, Time: at.UTC()}, Body: b,
		})
	}
	return all
}

func text(field, s string, limit int) error {
	if len(s) > limit || !utf8.ValidString(s) {
		return fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request is not valid").
			WithFields(map[string]string{field: "must be valid UTF-8 of a bounded length"})
	}
	return nil
}

func invalid(field, what string) error {
	return fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request is not valid").WithFields(map[string]string{field: what})
}

func notThere(id string) error {
	return fault.Newf(fault.NotFound, fault.ReasonTenantNotFound, "there is no tenant %s; create it first", id)
}

func noKey(id string) error {
	return fault.Newf(fault.NotFound, fault.ReasonKeyNotFound, "the tenant has no key %s", id)
}
