package clickhouse

import (
	"context"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/google/uuid"

	"github.com/sandtrail/sandtrail/libs/metering"
)

// final makes FINAL see all partitions, as the views do.
func final(ctx context.Context) context.Context {
	return ch.Context(ctx, ch.WithSettings(ch.Settings{"do_not_merge_across_partitions_select_final": 0}))
}

// Hours reads every hour as it stands in the rollups, or with daily every day, under the hour that it begins with. tenant is empty for all.
func (c *Conn) Hours(ctx context.Context, tenant string, daily bool) (metering.Windows, error) {
	q := "SELECT tenant_id, sandbox_id, session_id, meter, hour, quantity FROM agents.usage_hourly"
	if daily {
		q = "SELECT tenant_id, sandbox_id, session_id, meter, toDateTime(day, 'UTC'), quantity FROM agents.usage_daily"
	}
	rows, err := c.query(final(ctx), q+" WHERE ? = '' OR tenant_id = ?", tenant, tenant)
	if err != nil {
		return nil, unreadable(err)
	}
	defer func() { _ = rows.Close() }()
	all := metering.Windows{}
	for rows.Next() {
		var (
			k        metering.Key
			sandbox  uuid.UUID
			meter    string
			at       time.Time
			quantity uint64
		)
		if err := rows.Scan(&k.Tenant, &sandbox, &k.Session, &meter, &at, &quantity); err != nil {
			return nil, unreadable(err)
		}
		k.Sandbox, k.Meter, k.Hour = sandbox.String(), metering.Meter(meter), at.UnixMilli()
		all[k] = quantity
	}
	if err := rows.Err(); err != nil {
		return nil, unreadable(err)
	}
	return all, nil
}
