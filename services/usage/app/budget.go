package app

import (
	"context"
	"time"

	"github.com/sandtrail/sandtrail/services/usage/internal/budget"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

// Cost is what a month of a tenant costs; see budget.Cost.
type Cost = budget.Cost

// Costs says what each of a tenant's months costs in a currency, by the rows of the server at an address. periods are the first moments of
// months, one behind the other.
func Costs(ctx context.Context, address, tenant, currency string, periods ...time.Time) ([]Cost, error) {
	conn, err := clickhouse.Open(address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return costs{conn}.Of(ctx, tenant, currency, periods...)
}

// costs reads them from the rollups.
type costs struct{ conn *clickhouse.Conn }

// Of is that of budget.Costs.
func (c costs) Of(ctx context.Context, tenant, currency string, periods ...time.Time) ([]budget.Cost, error) {
	if len(periods) == 0 {
		return nil, nil
	}
	k, err := c.conn.Costs(ctx, tenant, periods[0], periods[len(periods)-1].AddDate(0, 1, 0))
	if err != nil {
		return nil, err
	}
	all := make([]budget.Cost, len(periods))
	for i, period := range periods {
		all[i].AtSeq = k.Mark.Seq
		all[i].Spent, all[i].Projected = k.Of(tenant, period.UnixMilli(), currency)
	}
	return all, nil
}
