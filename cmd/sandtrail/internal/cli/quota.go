package cli

import (
	"strconv"
	"strings"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/permission"
	"github.com/sandtrail/sandtrail/libs/quota"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
)

// Quota is `sandtrail quota`.
type Quota struct {
	Set  QuotaSet  `cmd:"" help:"Set limits of a tenant; they hold within seconds, and end nothing that runs."`
	Show QuotaShow `cmd:"" help:"Show a tenant's own limits, and what is in use."`
}

const (
	// fromDeployment is what a limit says that is the deployment's, unlimited one that is none at all.
	fromDeployment = "default"
	unlimited      = "unlimited"
)

// QuotaSet is `sandtrail quota set`.
type QuotaSet struct {
	Administering
	Tenant string   `arg:"" help:"Its id."`
	Limits []string `arg:"" placeholder:"NAME=N" help:"sandboxes, creates_per_minute, execs, cpu_millis, memory_bytes, workspace_bytes, output_bytes or idempotency_keys, and a number, a size such as 64Gi, unlimited, or default for the deployment's."`
	Note   string   `placeholder:"TEXT" help:"Why; the log keeps it for ever."`
}

// Run sets them, all or none.
func (q *QuotaSet) Run(e *Env) error {
	c := tenant.SetQuota{Set: tenant.Quotas{}, Note: q.Note}
	for _, arg := range q.Limits {
		name, value, ok := strings.Cut(arg, "=")
		_, twice := c.Set[tenant.Quota(name)]
		switch {
		case !ok || !tenant.Quota(name).Known():
			return usagef("%q is not NAME=N, with a name of %v", arg, tenant.AllQuotas())
		case twice:
			return usagef("%s is given twice", name)
		case value == fromDeployment:
			c.Unset = append(c.Unset, tenant.Quota(name))
			continue
		case value == unlimited:
			c.Set[tenant.Quota(name)] = tenant.Unbounded
			continue
		}
		n, err := size(name, value)
		if err != nil {
			return err
		}
		c.Set[tenant.Quota(name)] = n
	}
	t, err := q.change(e, q.Tenant, c)
	if err != nil {
		return err
	}
	return q.showQuotas(e, t, nil)
}

// QuotaShow is `sandtrail quota show`.
type QuotaShow struct {
	Log
	Tenant string `arg:"" help:"Its id."`
}

// Run shows them. What the deployment's limits are its services know, and tell tenants: the log does not hold them.
func (q *QuotaShow) Run(e *Env) error {
	if !subject.ValidTenant(q.Tenant) {
		return usagef("%q is not the id of a tenant", q.Tenant)
	}
	ctx, js, done, err := q.connect(e, permission.Operator)
	if err != nil {
		return err
	}
	defer done()
	h, err := eventlog.Current(ctx, jslog.New(js), subject.Tenant(q.Tenant))
	if err != nil {
		return ended(ctx, err)
	}
	used, err := quota.Used(ctx, js, q.Tenant)
	if err != nil {
		return ended(ctx, err)
	}
	return q.showQuotas(e, tenant.Fold(h), used)
}

// quotaJSON is a quota as programs get it: limit is a number, "unlimited" or "default"; used is null where there is no sum or nobody asked.
type quotaJSON struct {
	Name  string  `json:"name"`
	Limit any     `json:"limit"`
	Used  *uint64 `json:"used"`
}

func (l *Log) showQuotas(e *Env, t tenant.Tenant, used tenant.Quotas) error {
	var out []quotaJSON
	table := render.Table{Header: []string{"QUOTA", "LIMIT", "USED"}}
	for _, name := range tenant.AllQuotas() {
		q := quotaJSON{Name: string(name), Limit: fromDeployment}
		limit, shown := fromDeployment, "-"
		if n, own := t.Quotas[name]; own {
			q.Limit, limit = n, quotaAmount(name, n)
			if n == tenant.Unbounded {
				q.Limit, limit = unlimited, unlimited
			}
		}
		if n, counted := used[name]; counted {
			q.Used, shown = &n, quotaAmount(name, n)
		}
		out = append(out, q)
		table.Rows = append(table.Rows, []string{string(name), limit, shown})
	}
	if l.json() {
		return render.Value(e.Stdout, map[string]any{"tenant_id": t.ID, "quotas": out})
	}
	return table.Write(e.Stdout)
}

// quotaAmount writes bytes as sizes and anything else as a number.
func quotaAmount(name tenant.Quota, n uint64) string {
	if strings.HasSuffix(string(name), "_bytes") {
		return quantity(n)
	}
	return strconv.FormatUint(n, 10)
}
