package clickhouse

import (
	"context"
	"fmt"
	"math/big"
	"time"

	"github.com/google/uuid"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/metering"
)

// unseen is behind which time a sandbox's last reading adds nothing to what is expected of it: no longer than it is ever billed unseen, and as
// far as two clocks may differ.
const unseen = 3 * time.Hour

// Standing is a sandbox that runs as far as the rows say: its newest reading.
type Standing struct {
	Sandbox string
	Last    metering.Reading
	Owner   metering.Owner
}

// Costs is what a tenant's months cost up to a mark: its invoice, and what the sandboxes that run are expected to add by their next samples.
type Costs struct {
	Mark  Mark
	lines []metering.Line
	// more are the hours that are expected.
	more   metering.Windows
	prices []metering.Price
}

// Of is what a month costs in a currency, in billionths, and with what is expected. month is its first millisecond, in Unix milliseconds.
func (c Costs) Of(tenant string, month int64, currency string) (spent, projected *big.Int) {
	return metering.Cost(metering.Extend(c.lines, nil, nil), tenant, month, currency), metering.Cost(metering.Extend(c.lines, c.more, c.prices), tenant, month, currency)
}

// Costs reads them for the months that begin in [from, to). fault.Unavailable where hours are being added up at this moment: then the invoice
// is newer than the mark, and what it has would be expected once more.
func (c *Conn) Costs(ctx context.Context, tenant string, from, to time.Time) (Costs, error) {
	m, err := c.Marked(ctx)
	if err != nil {
		return Costs{}, err
	}
	k := Costs{Mark: m, more: metering.Windows{}}
	if k.prices, err = c.Prices(ctx); err != nil {
		return k, err
	}
	standing, err := c.Running(ctx, tenant, m)
	if err != nil {
		return k, err
	}
	for _, s := range standing {
		if span, ok := metering.Pending(s.Last, s.Owner, m.At.UnixMilli()); ok {
			k.more.Add(tenant, s.Sandbox, s.Owner.Session, span)
		}
	}
	if k.lines, err = c.Invoice(ctx, tenant, from, to); err != nil {
		return k, err
	}
	newest, err := c.newestHour(ctx, tenant)
	if err != nil {
		return k, err
	}
	again, err := c.Marked(ctx)
	if err == nil && (again != m || newest > m.revision()) {
		err = fault.New(fault.Unavailable, fault.ReasonConflict, "usage is being added up at this moment").WithRetry(time.Second)
	}
	return k, err
}

// Running are the sandboxes of a tenant that run as of a mark, but for those that nobody has heard of for hours.
func (c *Conn) Running(ctx context.Context, tenant string, m Mark) ([]Standing, error) {
	rows, err := c.query(final(ctx), `SELECT sandbox_id, r.1, r.2, r.3, r.4, r.5, r.6, r.7, r.8, r.9, r.10, r.11, r.12, r.13
FROM (
    SELECT sandbox_id, argMax((kind, session_id, stream_seq, toUnixTimestamp64Milli(occurred_at), uptime_ms, cpu_ms, memory_avg_bytes, disk_read_bytes,
           disk_write_bytes, network_egress_bytes, network_ingress_bytes, cpu_limit_millis, memory_limit_bytes), stream_seq) AS r
    FROM agents.usage_readings
    WHERE tenant_id = ? AND event_type = 'sandbox_reading' AND stream_seq <= ? AND occurred_at >= fromUnixTimestamp64Milli(toInt64(?), 'UTC')
    GROUP BY sandbox_id
)
WHERE r.1 IN ('ready', 'sampled')`, tenant, m.Seq, m.At.Add(-unseen).UnixMilli())
	if err != nil {
		return nil, unreadable(err)
	}
	defer func() { _ = rows.Close() }()
	var all []Standing
	for rows.Next() {
		var (
			s    Standing
			id   uuid.UUID
			kind string
		)
		l := &s.Last
		if err := rows.Scan(&id, &kind, &s.Owner.Session, &l.Seq, &l.At, &l.Millis, &l.CPUMillis, &l.MemoryAvg, &l.DiskRead, &l.DiskWrite, &l.Egress, &l.Ingress,
			&s.Owner.CPUMillis, &s.Owner.MemoryBytes); err != nil {
			return nil, unreadable(err)
		}
		s.Sandbox, l.Kind = id.String(), metering.Kind(kind)
		all = append(all, s)
	}
	if err := rows.Err(); err != nil {
		return nil, unreadable(err)
	}
	return all, nil
}

// newestHour is the revision of a tenant's newest hour, 0 without one.
func (c *Conn) newestHour(ctx context.Context, tenant string) (uint64, error) {
	var revision uint64
	rows, err := c.query(ctx, "SELECT max(revision) FROM agents.usage_hourly_raw WHERE tenant_id = ?", tenant)
	if err != nil {
		return 0, unreadable(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := rows.Scan(&revision); err != nil {
			return 0, fmt.Errorf("read the newest hour: %w", err)
		}
	}
	return revision, rows.Err()
}
