package metering

import (
	"math/big"
	"time"
)

// Price is what a quantity of a meter costs from a time on.
type Price struct {
	// Tenant is empty in a price for everybody. One for a tenant goes before it.
	Tenant string
	Meter  Meter
	// From is the start of the first hour with this price, in Unix milliseconds. Of several prices the latest one counts, of
	// those of one time the highest version.
	From    int64
	Version uint32
	// Nanos are billionths of the currency for Per units of the meter.
	Nanos, Per uint64
	Currency   string
}

// Line is a line of an invoice: all of a month that has one price.
type Line struct {
	Tenant string
	// Month is its first millisecond, in Unix milliseconds.
	Month    int64
	Meter    Meter
	Price    Price
	Quantity uint64
	// Nanos is Quantity x Price.Nanos / Price.Per, rounded down once.
	Nanos *big.Int
}

// Invoice prices windows. What has no price costs nothing and makes no line.
func Invoice(w Windows, prices []Price) map[LineKey]Line { return Extend(nil, w, prices) }

// Extend is Invoice of windows that come on top of lines: each amount is rounded once, as if all of it had been priced together.
func Extend(lines []Line, w Windows, prices []Price) map[LineKey]Line {
	all := map[LineKey]Line{}
	for _, l := range lines {
		all[LineKey{l.Tenant, l.Month, l.Price}] = l
	}
	for k, v := range w {
		p, ok := priced(k, prices)
		if !ok {
			continue
		}
		key := LineKey{k.Tenant, month(k.Hour), p}
		l := all[key]
		l.Tenant, l.Month, l.Meter, l.Price = key.Tenant, key.Month, k.Meter, p
		l.Quantity += v
		all[key] = l
	}
	for key, l := range all {
		n := new(big.Int).SetUint64(l.Quantity)
		n.Mul(n, new(big.Int).SetUint64(l.Price.Nanos))
		l.Nanos = n.Quo(n, new(big.Int).SetUint64(l.Price.Per))
		all[key] = l
	}
	return all
}

// Cost adds the lines of a tenant's month in a currency up. month is its first millisecond, in Unix milliseconds.
func Cost(lines map[LineKey]Line, tenant string, month int64, currency string) *big.Int {
	sum := new(big.Int)
	for k, l := range lines {
		if k.Tenant == tenant && k.Month == month && k.Price.Currency == currency {
			sum.Add(sum, l.Nanos)
		}
	}
	return sum
}

// LineKey names a line.
type LineKey struct {
	Tenant string
	Month  int64
	Price  Price
}

func priced(k Key, prices []Price) (Price, bool) {
	var best Price
	found := false
	for _, p := range prices {
		if p.Meter != k.Meter || p.Per == 0 || p.From > k.Hour || p.Tenant != "" && p.Tenant != k.Tenant {
			continue
		}
		if !found || p.before(best) {
			best, found = p, true
		}
	}
	return best, found
}

// before reports whether p is preferred to another one.
func (p Price) before(o Price) bool {
	switch {
	case (p.Tenant != "") != (o.Tenant != ""):
		return p.Tenant != ""
	case p.From != o.From:
		return p.From > o.From
	}
	return p.Version > o.Version
}

// month is the start of the month, UTC, in Unix milliseconds.
func month(ms int64) int64 {
	t := time.UnixMilli(ms).UTC()
	return time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC).UnixMilli()
}
