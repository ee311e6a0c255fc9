package clickhouse

import (
	"context"
	"fmt"
	"math/big"
	"regexp"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/metering"
	"github.com/sandtrail/sandtrail/libs/subject"
)

var currency = regexp.MustCompile(`^[A-Z]{3}$`)

// AddPrice adds one to the list. fault.InvalidArgument where it is none, with the fields that are wrong.
func (c *Conn) AddPrice(ctx context.Context, p metering.Price) error {
	wrong := map[string]string{}
	if p.Tenant != "" && !subject.ValidToken(p.Tenant) {
		wrong["tenant_id"] = "must be a tenant, or empty for all"
	}
	if p.Meter.Unit() == "" {
		wrong["meter"] = "must be a meter"
	}
	if p.From < 0 || p.From != metering.Hour(p.From) || time.UnixMilli(p.From).After(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)) {
		wrong["valid_from"] = "must be the start of an hour before 2100, UTC"
	}
	if p.Per == 0 {
		wrong["per"] = "must be at least 1"
	}
	if !currency.MatchString(p.Currency) {
		wrong["currency"] = "must be three letters, such as EUR"
	}
	if len(wrong) > 0 {
		return fault.New(fault.InvalidArgument, fault.ReasonValidation, "this is no price").WithFields(wrong)
	}
	err := c.conn.Exec(ctx, "INSERT INTO agents.usage_prices (tenant_id, meter, valid_from, version, nanos, per, currency)"+
		" SELECT ?, ?, toDateTime(toInt64(?), 'UTC'), ?, ?, ?, ?",
		p.Tenant, string(p.Meter), p.From/1000, p.Version, p.Nanos, p.Per, p.Currency)
	if err != nil {
		return fmt.Errorf("add a price: %w", err)
	}
	return nil
}

// Invoice reads the lines of the months that begin in [from, to), all of them where both are zero. tenant is empty for all.
func (c *Conn) Invoice(ctx context.Context, tenant string, from, to time.Time) ([]metering.Line, error) {
	if to.IsZero() {
		to = time.Date(2105, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	rows, err := c.conn.Query(final(ctx), "SELECT tenant_id, toDateTime(month, 'UTC'), meter, quantity, nanos, per, currency, agreed, price_from, price_version, amount_nanos"+
		" FROM agents.invoice_lines WHERE (? = '' OR tenant_id = ?) AND toUnixTimestamp(toDateTime(month, 'UTC')) >= ? AND toUnixTimestamp(toDateTime(month, 'UTC')) < ?"+
		" ORDER BY tenant_id, month, meter, price_from", tenant, tenant, max(from.Unix(), 0), to.Unix())
	if err != nil {
		return nil, unreadable(err)
	}
	defer func() { _ = rows.Close() }()
	var all []metering.Line
	for rows.Next() {
		var (
			l         metering.Line
			month, at time.Time
			meter     string
			agreed    uint8
			nanos     big.Int
		)
		if err := rows.Scan(&l.Tenant, &month, &meter, &l.Quantity, &l.Price.Nanos, &l.Price.Per, &l.Price.Currency, &agreed, &at, &l.Price.Version, &nanos); err != nil {
			return nil, unreadable(err)
		}
		l.Month, l.Meter, l.Nanos = month.UnixMilli(), metering.Meter(meter), &nanos
		l.Price.Meter, l.Price.From = l.Meter, at.UnixMilli()
		if agreed == 1 {
			l.Price.Tenant = l.Tenant
		}
		all = append(all, l)
	}
	if err := rows.Err(); err != nil {
		return nil, unreadable(err)
	}
	return all, nil
}
