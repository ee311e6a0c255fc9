package quota

import (
	"context"
	"sync"
	"time"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
)

const (
	// current is how long a tenant's quotas are believed without asking the log: what is set holds that much later at most.
	current = 2 * time.Second
	// bookMost bounds the tenants whose quotas are remembered; over it all are forgotten, which costs one load each.
	bookMost = 4096
)

// Book says what tenants may use: their own quotas by the log, the deployment's for the rest; and whether their budgets let them.
type Book struct {
	log        eventlog.Log
	deployment tenant.Quotas
	now        func() time.Time

	mu    sync.Mutex
	pages map[string]page
}

type page struct {
	own tenant.Quotas
	// budget with what it reached, which is read of a budget that refuses only.
	budget tenant.BudgetState
	// seq is the last event of the tenant, reached that of its budgets.
	seq, reached uint64
	at           time.Time
}

// NewBook reads from a log. deployment are the quotas of tenants that have none of their own.
func NewBook(log eventlog.Log, deployment tenant.Quotas) *Book {
	return &Book{log: log, deployment: deployment, now: time.Now, pages: map[string]page{}}
}

// Of are the quotas of a tenant, which need not have been created: they are two seconds old at most. The error is that of the log.
func (b *Book) Of(ctx context.Context, id string) (tenant.Quotas, error) {
	_, all, err := b.Both(ctx, id)
	return all, err
}

// Both are a tenant's own quotas, and with the deployment's those that hold.
func (b *Book) Both(ctx context.Context, id string) (own, all tenant.Quotas, err error) {
	p, err := b.page(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	return p.own, p.own.Over(b.deployment), nil
}

// Admit refuses new work of a tenant whose budget is used up: fault.ResourceExhausted, ReasonBudgetExhausted. What the log says of it is two
// seconds old at most; that the month is over the clock of this host says. Any other error is that of the log.
func (b *Book) Admit(ctx context.Context, id string) error {
	p, err := b.page(ctx, id)
	if err != nil {
		return err
	}
	return p.budget.Admit(id, b.now())
}

func (b *Book) page(ctx context.Context, id string) (page, error) {
	b.mu.Lock()
	p, known := b.pages[id]
	b.mu.Unlock()
	if known && b.now().Sub(p.at) < current {
		return p, nil
	}
	return b.read(ctx, id, p)
}

// read asks the leader of the log whether anything is new, and loads it then.
func (b *Book) read(ctx context.Context, id string, p page) (page, error) {
	asked := b.now()
	h, changed, err := b.since(ctx, subject.Tenant(id), p.seq)
	if err != nil {
		return p, err
	}
	if changed {
		t := tenant.Fold(h)
		p = page{own: t.Quotas, budget: tenant.BudgetState{Budget: t.Budget}, seq: h.Tail().Seq}
	}
	if p.budget.Refuse {
		h, changed, err := b.since(ctx, subject.Budget(id), p.reached)
		if err != nil {
			return p, err
		}
		if changed {
			p.budget, p.reached = tenant.FoldBudget(p.budget.Budget, h.Events), h.Tail().Seq
		}
	}
	p.at = asked
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.pages) >= bookMost {
		clear(b.pages)
	}
	b.pages[id] = p
	return p, nil
}

// since is an aggregate's history where its last event is another than seq.
func (b *Book) since(ctx context.Context, agg subject.Aggregate, seq uint64) (h eventlog.History, changed bool, err error) {
	last, err := b.log.LastSeq(ctx, agg)
	if err != nil || last == seq {
		return h, false, err
	}
	h.Aggregate = agg
	if last > 0 {
		h, err = eventlog.LoadUpTo(ctx, b.log, agg, last)
	}
	return h, err == nil, err
}
