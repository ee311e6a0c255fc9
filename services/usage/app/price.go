package app

import (
	"cmp"
	"context"
	"math/big"
	"slices"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/metering"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

// MaxPrices bounds the prices that are added together.
const MaxPrices = clickhouse.MaxPrices

// Prices reads the whole price list of the server at an address, in the order of tenant, meter, validity and version.
func Prices(ctx context.Context, address string) ([]metering.Price, error) {
	conn, err := clickhouse.Open(address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return conn.Prices(ctx)
}

// Invoice reads the lines of the months that begin in [from, to), all of them where both are zero; tenant is empty for all.
func Invoice(ctx context.Context, address, tenant string, from, to time.Time) ([]metering.Line, error) {
	conn, err := clickhouse.Open(address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return conn.Invoice(ctx, tenant, from, to)
}

// LineChange is a tenant's month of one meter and currency that costs something else than before; nil: it cost nothing, or does not now.
type LineChange struct {
	Tenant   string
	Month    time.Time
	Meter    metering.Meter
	Currency string
	Was, Is  *big.Int
}

// Priced is what became of prices.
type Priced struct {
	// Added are those that were not in the list, with their versions.
	Added []metering.Price
	// Until is up to where hours are added up: a price from before changes invoices that may have been sent.
	Until time.Time
	// Changed are the months that cost something else now.
	Changed []LineChange
}

// AddPrices adds prices, all or none, to the list of the server at an address. A price that stands already is left out. One of version 0 gets
// the next version of its validity. past: prices may begin before the end of what is added up, which changes invoices of the past; what it
// changed is said. fault.FailedPrecondition without it, fault.InvalidArgument: a price is none, fault.Conflict: another one stands under its
// version.
func AddPrices(ctx context.Context, address string, prices []metering.Price, past bool) (Priced, error) {
	if err := clickhouse.ValidPrices(prices...); err != nil {
		return Priced{}, err
	}
	conn, err := clickhouse.Open(address)
	if err != nil {
		return Priced{}, err
	}
	defer func() { _ = conn.Close() }()
	stand, err := conn.Prices(ctx)
	if err != nil {
		return Priced{}, err
	}
	added, err := fresh(stand, prices)
	if err != nil {
		return Priced{}, err
	}
	m, err := conn.Marked(ctx)
	if err != nil {
		return Priced{}, err
	}
	r := Priced{Added: added}
	if m.Seq > 0 {
		// The hour in which the mark lies has begun to be added up.
		r.Until = time.UnixMilli(m.Until()).UTC().Add(time.Hour)
	}
	touches := slices.ContainsFunc(added, func(p metering.Price) bool { return p.From < r.Until.UnixMilli() })
	if touches && m.Seq > 0 && !past {
		return r, fault.Newf(fault.FailedPrecondition, fault.ReasonIllegalState,
			"a price begins before %s, up to where usage is added up: it would change invoices of the past", r.Until.Format(time.RFC3339))
	}
	if len(added) == 0 {
		return r, nil
	}
	before, err := conn.Invoice(ctx, "", time.Time{}, time.Time{})
	if err != nil {
		return r, err
	}
	if err := conn.AddPrices(ctx, added...); err != nil {
		return r, err
	}
	after, err := conn.Invoice(ctx, "", time.Time{}, time.Time{})
	if err != nil {
		return r, err
	}
	r.Changed = changed(before, after)
	return r, nil
}

// validity is what versions are counted in.
type validity struct {
	tenant string
	meter  metering.Meter
	from   int64
}

func of(p metering.Price) validity { return validity{p.Tenant, p.Meter, p.From} }

// fresh are the prices that do not stand yet, each with a version.
func fresh(stand, prices []metering.Price) ([]metering.Price, error) {
	latest, known := map[validity]metering.Price{}, map[metering.Price]bool{}
	taken := map[validity]map[uint32]metering.Price{}
	note := func(p metering.Price) {
		known[p] = true
		if l, ok := latest[of(p)]; !ok || p.Version >= l.Version {
			latest[of(p)] = p
		}
		if taken[of(p)] == nil {
			taken[of(p)] = map[uint32]metering.Price{}
		}
		taken[of(p)][p.Version] = p
	}
	for _, p := range stand {
		note(p)
	}
	var added []metering.Price
	for _, p := range prices {
		l, ok := latest[of(p)]
		if p.Version == 0 {
			p.Version = 1
			if ok {
				same := l
				same.Version = 1
				if same == p {
					continue
				}
				p.Version = l.Version + 1
			}
		}
		if known[p] {
			continue
		}
		if other, ok := taken[of(p)][p.Version]; ok {
			return nil, fault.Newf(fault.Conflict, fault.ReasonConflict, "version %d of the price of %s from %s stands already, with %d nanos per %d %s",
				p.Version, p.Meter, time.UnixMilli(p.From).UTC().Format(time.RFC3339), other.Nanos, other.Per, other.Currency)
		}
		note(p)
		added = append(added, p)
	}
	return added, nil
}

// changed compares the months of two invoices.
func changed(before, after []metering.Line) []LineChange {
	type key struct {
		tenant   string
		month    int64
		meter    metering.Meter
		currency string
	}
	sums := func(lines []metering.Line) map[key]*big.Int {
		all := map[key]*big.Int{}
		for _, l := range lines {
			k := key{l.Tenant, l.Month, l.Meter, l.Price.Currency}
			if all[k] == nil {
				all[k] = new(big.Int)
			}
			all[k].Add(all[k], l.Nanos)
		}
		return all
	}
	was, is := sums(before), sums(after)
	var all []LineChange
	add := func(k key) {
		all = append(all, LineChange{k.tenant, time.UnixMilli(k.month).UTC(), k.meter, k.currency, was[k], is[k]})
	}
	for k, n := range was {
		if is[k] == nil || is[k].Cmp(n) != 0 {
			add(k)
		}
	}
	for k := range is {
		if was[k] == nil {
			add(k)
		}
	}
	slices.SortFunc(all, func(a, b LineChange) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), a.Month.Compare(b.Month), cmp.Compare(a.Meter, b.Meter), cmp.Compare(a.Currency, b.Currency))
	})
	return all
}
