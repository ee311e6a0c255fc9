package cli

import (
	"time"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
)

// Key is `sandtrail key`.
type Key struct {
	Create KeyCreate `cmd:"" help:"Make a key and print it, this once."`
	List   KeyList   `cmd:"" aliases:"ls" help:"List keys, newest last; none is shown itself."`
	Revoke KeyRevoke `cmd:"" help:"End keys: they work no longer within a second, and what is open with them ends."`
	Rotate KeyRotate `cmd:"" help:"Make a key that takes over from another, and print it, this once."`
}

// keyJSON is a key as programs get it; the key itself only where it was just made.
type keyJSON struct {
	Key        string     `json:"key,omitempty"`
	KeyID      string     `json:"key_id"`
	TenantID   string     `json:"tenant_id"`
	Name       string     `json:"name"`
	Prefix     string     `json:"prefix"`
	Scopes     []string   `json:"scopes"`
	State      string     `json:"state"`
	CreatedAt  time.Time  `json:"created_at"`
	ExpiresAt  *time.Time `json:"expires_at"`
	RevokedAt  *time.Time `json:"revoked_at"`
	ReplacedBy string     `json:"replaced_by,omitempty"`
	// LastUsedAt is some seconds behind.
	LastUsedAt *time.Time `json:"last_used_at"`
}

func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func keyOf(id string, k tenant.Key, used time.Time) keyJSON {
	return keyJSON{
		KeyID: k.ID, TenantID: id, Name: k.Name, Prefix: k.Prefix, Scopes: k.Scopes.Names(), State: k.State(time.Now()), CreatedAt: k.CreatedAt,
		ExpiresAt: optional(k.ExpiresAt), RevokedAt: optional(k.RevokedAt), ReplacedBy: k.ReplacedBy, LastUsedAt: optional(used),
	}
}

// showNew prints a key that was just made. It is the only time that anybody can.
func (l *Log) showNew(e *Env, t tenant.Tenant, s tenant.Secret) error {
	k, there := t.Key(s.ID)
	if !there {
		return fault.New(fault.Internal, fault.ReasonInternal, "the key was made and is not in the log; make another one")
	}
	out := keyOf(t.ID, k, time.Time{})
	out.Key = s.Text
	if l.json() {
		return render.Value(e.Stdout, out)
	}
	err := render.Fields(e.Stdout, []render.Field{
		{Name: "Key", Value: s.Text},
		{Name: "Id", Value: k.ID},
		{Name: "Tenant", Value: t.ID},
		{Name: "Name", Value: k.Name},
		{Name: "Scopes", Value: k.Scopes.String()},
		{Name: "Expires", Value: clock(k.ExpiresAt)},
	})
	e.warn("this is the only time that the key is shown")
	return err
}

// KeyCreate is `sandtrail key create`.
type KeyCreate struct {
	Administering
	Tenant  string        `required:"" env:"SANDTRAIL_TENANT" placeholder:"ID" help:"Whose it is."`
	Scopes  []string      `required:"" placeholder:"SCOPE" help:"What it allows: create, inspect, execute, files, stop, admin (which is all)."`
	Name    string        `placeholder:"TEXT" help:"What it is for."`
	Expires time.Duration `placeholder:"AGE" help:"How long it works; for ever unless set."`
}

// Run makes it.
func (c *KeyCreate) Run(e *Env) error {
	scopes, err := tenant.ParseScopes(c.Scopes)
	if err != nil {
		return usagef("--scopes: %w", err)
	}
	if c.Expires < 0 {
		return usagef("--expires: an age is not negative")
	}
	s, now := tenant.NewSecret(), time.Now()
	command := tenant.CreateKey{Secret: s, Name: c.Name, Scopes: scopes, At: now}
	if c.Expires > 0 {
		command.ExpiresAt = now.Add(c.Expires)
	}
	t, err := c.change(e, c.Tenant, command)
	if err != nil {
		return err
	}
	return c.showNew(e, t, s)
}

// KeyRotate is `sandtrail key rotate`.
type KeyRotate struct {
	Administering
	Tenant  string        `required:"" env:"SANDTRAIL_TENANT" placeholder:"ID" help:"Whose it is."`
	ID      string        `arg:"" help:"The key's id, as in the list."`
	Overlap time.Duration `placeholder:"AGE" help:"How long the old one still works; not at all unless set."`
}

// Run makes a key with the name, scopes and end of another.
func (r *KeyRotate) Run(e *Env) error {
	if r.Overlap < 0 {
		return usagef("--overlap: an age is not negative")
	}
	old, _, err := r.one(e, r.Tenant, r.ID)
	if err != nil {
		return err
	}
	s, now := tenant.NewSecret(), time.Now()
	t, err := r.change(e, r.Tenant, tenant.CreateKey{
		Secret: s, Name: old.Name, Scopes: old.Scopes, At: now, ExpiresAt: old.ExpiresAt, Replaces: old.ID, ReplacedUntil: now.Add(r.Overlap),
	})
	if err != nil {
		return err
	}
	return r.showNew(e, t, s)
}

// one finds a key.
func (l *Log) one(e *Env, id, key string) (tenant.Key, time.Time, error) {
	if !subject.ValidTenant(id) {
		return tenant.Key{}, time.Time{}, usagef("%q is not the id of a tenant", id)
	}
	all, used, err := l.tenants(e, id)
	if err != nil {
		return tenant.Key{}, time.Time{}, err
	}
	for _, t := range all {
		if k, there := t.Key(key); there {
			return k, used[id+"."+key], nil
		}
	}
	return tenant.Key{}, time.Time{}, fault.Newf(fault.NotFound, fault.ReasonKeyNotFound, "the tenant has no key %s", key)
}

// KeyList is `sandtrail key list`.
type KeyList struct {
	Log
	Tenant string `env:"SANDTRAIL_TENANT" placeholder:"ID" help:"Only those of a tenant."`
	All    bool   `help:"Also those that work no longer."`
}

// Run lists them.
func (l *KeyList) Run(e *Env) error {
	if l.Tenant != "" && !subject.ValidTenant(l.Tenant) {
		return usagef("%q is not the id of a tenant", l.Tenant)
	}
	all, used, err := l.tenants(e, l.Tenant)
	if err != nil {
		return err
	}
	out := []keyJSON{}
	table := render.Table{Header: []string{"KEY", "TENANT", "PREFIX", "NAME", "SCOPES", "STATE", "AGE", "EXPIRES", "LAST USED"}}
	for _, t := range all {
		for _, k := range t.Keys {
			if !l.All && !k.Works(time.Now()) {
				continue
			}
			last := used[t.ID+"."+k.ID]
			out = append(out, keyOf(t.ID, k, last))
			table.Rows = append(table.Rows, []string{
				k.ID, t.ID, k.Prefix, k.Name, k.Scopes.String(), k.State(time.Now()), age(k.CreatedAt), clock(k.ExpiresAt), clock(last),
			})
		}
	}
	if l.json() {
		return render.Value(e.Stdout, out)
	}
	return table.Write(e.Stdout)
}

// KeyRevoke is `sandtrail key revoke`.
type KeyRevoke struct {
	Administering
	Tenant string   `required:"" env:"SANDTRAIL_TENANT" placeholder:"ID" help:"Whose they are."`
	IDs    []string `arg:"" name:"id" help:"The keys' ids, as in the list."`
	Note   string   `placeholder:"TEXT" help:"Why; the log keeps it for ever."`
}

// Run revokes them, all or none. Those that work no longer stay as they are.
func (r *KeyRevoke) Run(e *Env) error {
	t, err := r.change(e, r.Tenant, tenant.RevokeKeys{IDs: r.IDs, Note: r.Note, At: time.Now()})
	if err != nil {
		return err
	}
	out := []keyJSON{}
	for _, id := range r.IDs {
		if k, there := t.Key(id); there {
			out = append(out, keyOf(t.ID, k, time.Time{}))
		}
	}
	if r.json() {
		return render.Value(e.Stdout, out)
	}
	for _, k := range out {
		e.warn("key %s (%s…) is %s", k.KeyID, k.Prefix, k.State)
	}
	return nil
}
