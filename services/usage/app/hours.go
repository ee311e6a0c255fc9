package app

import (
	"context"

	"github.com/sandtrail/sandtrail/libs/metering"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

// Mark is a place in the log; Grace is how long after its end an hour is closed.
type Mark = clickhouse.Mark

// Grace is how long after its end an hour is closed, by the log's clock.
const Grace = clickhouse.Grace

// Hours reads the rollups of the server at an address, by hour or by day, and up to where in the log they are complete.
func Hours(ctx context.Context, address, tenant string, daily bool) (metering.Windows, Mark, error) {
	conn, err := clickhouse.Open(address)
	if err != nil {
		return nil, Mark{}, err
	}
	defer func() { _ = conn.Close() }()
	m, err := conn.Marked(ctx)
	if err != nil {
		return nil, Mark{}, err
	}
	w, err := conn.Hours(ctx, tenant, daily)
	return w, m, err
}
