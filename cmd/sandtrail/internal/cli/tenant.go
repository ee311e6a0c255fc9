package cli

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/permission"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// Tenant is `sandtrail tenant`.
type Tenant struct {
	Create TenantCreate `cmd:"" help:"Create a tenant, so that it can have keys."`
	List   TenantList   `cmd:"" aliases:"ls" help:"List tenants."`
	Revoke TenantRevoke `cmd:"" help:"Revoke every key of a tenant."`
}

// Administering are the flags of commands that change tenants and keys.
type Administering struct {
	Log
	Operator string `env:"SANDTRAIL_OPERATOR" placeholder:"NAME" help:"Who does it; the log keeps it. Default: your user name."`
}

// change carries a command out on a tenant and returns the tenant behind it.
func (a *Administering) change(e *Env, id string, c tenant.Command) (tenant.Tenant, error) {
	if !subject.ValidTenant(id) {
		return tenant.Tenant{}, usagef("%q is not the id of a tenant: 1 to 64 of A-Z a-z 0-9 _ -", id)
	}
	ctx, js, done, err := a.connect(e, permission.Operator)
	if err != nil {
		return tenant.Tenant{}, err
	}
	defer done()
	command := ids.New()
	h, err := eventlog.Execute(ctx, jslog.New(js), subject.Tenant(id), func(h eventlog.History) ([]envelope.Event, error) {
		bodies, err := tenant.Decide(tenant.Fold(h), c)
		return tenant.Events(id, command, "operator:"+operatorName(a.Operator), time.Now(), bodies...), err
	})
	if err != nil {
		return tenant.Tenant{}, ended(ctx, err)
	}
	return tenant.Fold(h), nil
}

// tenants reads all tenants from the log, one where id is given, by their ids.
func (l *Log) tenants(e *Env, id string) ([]tenant.Tenant, map[string]time.Time, error) {
	ctx, js, done, err := l.connect(e, permission.Operator)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	filter := subject.AllTenants()
	if id != "" {
		filter = subject.Tenant(id).Subject()
	}
	all := map[string]tenant.Tenant{}
	err = directget.Each(ctx, js, topology.StreamEvents, filter, 1, func(m directget.Message) error {
		agg, err := subject.ParseEvent(m.Subject)
		if err != nil {
			return err
		}
		r, err := envelope.Decode(m.Subject, m.Seq, m.Header, m.Data)
		if err != nil {
			return err
		}
		t, ok := all[agg.Tenant]
		if !ok {
			t.ID = agg.Tenant
		}
		all[agg.Tenant] = t.Evolve(r)
		return nil
	})
	if err != nil {
		return nil, nil, ended(ctx, err)
	}
	var sorted []tenant.Tenant
	for _, t := range all {
		sorted = append(sorted, t)
	}
	slices.SortFunc(sorted, func(a, b tenant.Tenant) int { return strings.Compare(a.ID, b.ID) })
	return sorted, lastUse(ctx, js, id), nil
}

// lastUse is when keys were used last, by <tenant>.<key>. It is a courtesy: what cannot be read is not shown.
func lastUse(ctx context.Context, js jetstream.JetStream, id string) map[string]time.Time {
	used := map[string]time.Time{}
	prefix := subject.BucketKey(topology.BucketKey, "")
	_ = directget.Each(ctx, js, subject.BucketStream(topology.BucketKey), subject.BucketKeys(topology.BucketKey, id), 1,
		func(m directget.Message) error {
			if at, err := time.Parse(time.RFC3339, string(m.Data)); err == nil {
				used[strings.TrimPrefix(m.Subject, prefix)] = at
			}
			return nil
		})
	return used
}

// tenantJSON is a tenant as programs get it.
type tenantJSON struct {
	TenantID  string    `json:"tenant_id"`
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`
	// LiveKeys are the keys that work.
	LiveKeys int `json:"live_keys"`
}

func tenantOf(t tenant.Tenant) tenantJSON {
	out := tenantJSON{TenantID: t.ID, Name: t.Name, CreatedAt: t.CreatedAt}
	for _, k := range t.Keys {
		if k.Works(time.Now()) {
			out.LiveKeys++
		}
	}
	return out
}

func (l *Log) showTenant(e *Env, t tenant.Tenant) error {
	if l.json() {
		return render.Value(e.Stdout, tenantOf(t))
	}
	return render.Fields(e.Stdout, []render.Field{
		{Name: "Tenant", Value: t.ID},
		{Name: "Name", Value: t.Name},
		{Name: "Created", Value: clock(t.CreatedAt)},
		{Name: "Live keys", Value: strconv.Itoa(tenantOf(t).LiveKeys)},
	})
}

// TenantCreate is `sandtrail tenant create`.
type TenantCreate struct {
	Administering
	ID   string `arg:"" help:"Its id: 1 to 64 of A-Z a-z 0-9 _ -."`
	Name string `placeholder:"TEXT" help:"Its name, for people."`
}

// Run creates it. One that is there stays as it is.
func (c *TenantCreate) Run(e *Env) error {
	t, err := c.change(e, c.ID, tenant.CreateTenant{Name: c.Name})
	if err != nil {
		return err
	}
	return c.showTenant(e, t)
}

// TenantList is `sandtrail tenant list`.
type TenantList struct{ Log }

// Run lists them.
func (l *TenantList) Run(e *Env) error {
	all, _, err := l.tenants(e, "")
	if err != nil {
		return err
	}
	out := make([]tenantJSON, 0, len(all))
	table := render.Table{Header: []string{"TENANT", "NAME", "LIVE KEYS", "AGE"}}
	for _, t := range all {
		x := tenantOf(t)
		out = append(out, x)
		table.Rows = append(table.Rows, []string{x.TenantID, x.Name, strconv.Itoa(x.LiveKeys), age(x.CreatedAt)})
	}
	if l.json() {
		return render.Value(e.Stdout, out)
	}
	return table.Write(e.Stdout)
}

// TenantRevoke is `sandtrail tenant revoke`.
type TenantRevoke struct {
	Administering
	ID   string `arg:"" help:"Its id."`
	Note string `placeholder:"TEXT" help:"Why; the log keeps it for ever."`
}

// Run revokes every key that works now. Sandboxes go on.
func (r *TenantRevoke) Run(e *Env) error {
	t, err := r.change(e, r.ID, tenant.RevokeKeys{Note: r.Note, At: time.Now()})
	if err != nil {
		return err
	}
	return r.showTenant(e, t)
}
