// Package budget records in the log when what a tenant's month costs reaches a threshold of its budget. What it costs is told by the invoice
// lines and libs/metering, what is reached by libs/tenant; here the two meet. Any number may do so at once and be killed at any time: a
// threshold is an event of subject.Budget, under the sequence that it was decided on and with an id that follows from what it says.
package budget

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// Actor is who events of reached budgets name.
const Actor = "service:usage"

// Cost is what a month of a tenant costs, in billionths.
type Cost struct {
	Spent, Projected *big.Int
	// AtSeq is the sequence of the log up to which that was added up.
	AtSeq uint64
}

// Costs tells what each of a tenant's months costs in a currency. periods are first moments of months, one behind the other; as many are
// answered. The error is of who cannot say it now.
type Costs interface {
	Of(ctx context.Context, tenant, currency string, periods ...time.Time) ([]Cost, error)
}

// Keeper compares costs with budgets. Not for concurrent use; several of them are.
type Keeper struct {
	js    jetstream.JetStream
	log   eventlog.Log
	costs Costs
	now   func() time.Time

	// tenants are those of the log up to read, reached what their budgets did up to heard, of the log that life names.
	tenants     map[string]tenant.Tenant
	reached     map[string][]envelope.Recorded
	read, heard uint64
	at          Position
}

// Position is how far the log has been added up: sequences of two lives do not compare.
type Position struct {
	Life string
	Seq  uint64
	// At is when the log took the event there. The month that it lies in is the present one.
	At time.Time
}

// New makes a keeper. now stamps events.
func New(js jetstream.JetStream, log eventlog.Log, costs Costs, now func() time.Time) *Keeper {
	return &Keeper{js: js, log: log, costs: costs, now: now, tenants: map[string]tenant.Tenant{}, reached: map[string][]envelope.Recorded{}}
}

// Pass looks at all tenants that have a budget, at the present month and at the one before, of which facts may still come. A tenant that
// could not be looked at does not keep it from the others; the errors are joined.
func (k *Keeper) Pass(ctx context.Context, p Position) error {
	if err := k.follow(ctx, p); err != nil {
		return err
	}
	var errs []error
	for _, t := range k.tenants {
		if !t.Budget.Set() {
			continue
		}
		if err := k.look(ctx, t, p); err != nil {
			errs = append(errs, fmt.Errorf("budget of tenant %s: %w", t.ID, err))
		}
	}
	return errors.Join(errs...)
}

// follow reads what is new of all tenants and of what their budgets reached. A log that has lost its end is read from its beginning.
func (k *Keeper) follow(ctx context.Context, p Position) error {
	if p.Life != k.at.Life || p.Seq < k.at.Seq {
		k.read, k.heard = 0, 0
		clear(k.tenants)
		clear(k.reached)
	}
	k.at = p
	err := k.each(ctx, subject.AllTenants(), &k.read, func(id string, e envelope.Recorded) {
		t, ok := k.tenants[id]
		if !ok {
			t = tenant.Tenant{ID: id}
		}
		k.tenants[id] = t.Evolve(e)
	})
	if err != nil {
		return fmt.Errorf("read the tenants: %w", err)
	}
	err = k.each(ctx, subject.AllBudgets(), &k.heard, func(id string, e envelope.Recorded) { k.reached[id] = append(k.reached[id], e) })
	if err != nil {
		return fmt.Errorf("read what budgets reached: %w", err)
	}
	return nil
}

// each event that a filter matches behind a sequence, with its tenant. What cannot be read sets and reaches nothing.
func (k *Keeper) each(ctx context.Context, filter string, behind *uint64, do func(tenant string, e envelope.Recorded)) error {
	return directget.Each(ctx, k.js, topology.StreamEvents, filter, *behind+1, func(m directget.Message) error {
		*behind = m.Seq
		agg, err := subject.ParseEvent(m.Subject)
		if err != nil {
			return nil //nolint:nilerr // it is no tenant's
		}
		e, err := envelope.Decode(m.Subject, m.Seq, m.Header, m.Data)
		if err != nil {
			return nil //nolint:nilerr // see above
		}
		do(agg.Tenant, e)
		return nil
	})
}

// look compares one tenant's months with its budget, and records what they reach.
func (k *Keeper) look(ctx context.Context, t tenant.Tenant, p Position) error {
	now, _ := tenant.Period(p.At)
	before := now.AddDate(0, -1, 0)
	costs, err := k.costs.Of(ctx, t.ID, t.Budget.Currency, before, now)
	if err != nil {
		return err
	}
	for i, period := range []time.Time{before, now} {
		c := tenant.ReachBudget{Version: t.Budget.Version, Period: period, Spent: costs[i].Spent, Projected: costs[i].Projected, AtSeq: costs[i].AtSeq}
		// Most often nothing is new, and then nobody is asked.
		if len(tenant.FoldBudget(t.Budget, k.reached[t.ID]).Reach(c)) == 0 {
			continue
		}
		if err := k.record(ctx, t.ID, c); err != nil {
			return err
		}
	}
	return nil
}

// record decides by the budget as it is now, lest it tell of one that was changed meanwhile. One that is changed between that and the append has
// its thresholds recorded under its own version, which is in no other's way.
func (k *Keeper) record(ctx context.Context, id string, c tenant.ReachBudget) error {
	_, err := eventlog.Execute(ctx, k.log, subject.Budget(id), func(h eventlog.History) ([]envelope.Event, error) {
		now, err := eventlog.Current(ctx, k.log, subject.Tenant(id))
		if err != nil {
			return nil, err
		}
		bodies := tenant.FoldBudget(tenant.Fold(now).Budget, h.Events).Reach(c)
		return tenant.BudgetEvents(id, Actor, k.now(), bodies...), nil
	})
	return err
}
