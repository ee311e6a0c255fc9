package clickhouse

import (
	"context"
	"fmt"
	"maps"
	"math/big"
	"regexp"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/metering"
	"github.com/sandtrail/sandtrail/libs/subject"
)

var currency = regexp.MustCompile(`^[A-Z]{3}$`)

// MaxPrices bounds the prices that are added together.
const MaxPrices = 10_000

// wrong are the fields of a price that are none, under a prefix.
func wrong(p metering.Price, prefix string) map[string]string {
	fields := map[string]string{}
	if p.Tenant != "" && !subject.ValidToken(p.Tenant) {
		fields[prefix+"tenant_id"] = "must be a tenant, or empty for all"
	}
	if p.Meter.Unit() == "" {
		fields[prefix+"meter"] = "must be a meter"
	}
	if p.From < 0 || p.From != metering.Hour(p.From) || time.UnixMilli(p.From).After(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)) {
		fields[prefix+"valid_from"] = "must be the start of an hour between 1970 and 2100, UTC"
	}
	if p.Per == 0 {
		fields[prefix+"per"] = "must be at least 1"
	}
	if !currency.MatchString(p.Currency) {
		fields[prefix+"currency"] = "must be three letters, such as EUR"
	}
	return fields
}

// AddPrice adds one to the list. fault.InvalidArgument where it is none, with the fields that are wrong.
func (c *Conn) AddPrice(ctx context.Context, p metering.Price) error { return c.AddPrices(ctx, p) }

// AddPrices adds all or none of at most MaxPrices. fault.InvalidArgument where one is none; the fields of several have the place of their
// price before them, from 0.
func (c *Conn) AddPrices(ctx context.Context, prices ...metering.Price) error {
	if err := ValidPrices(prices...); err != nil {
		return err
	}
	if len(prices) == 0 {
		return nil
	}
	b, err := c.conn.PrepareBatch(ctx, "INSERT INTO agents.usage_prices (tenant_id, meter, valid_from, version, nanos, per, currency)")
	if err != nil {
		return fmt.Errorf("add prices: %w", err)
	}
	defer func() { _ = b.Close() }()
	for _, p := range prices {
		if err := b.Append(p.Tenant, string(p.Meter), time.UnixMilli(p.From).UTC(), p.Version, p.Nanos, p.Per, p.Currency); err != nil {
			return fmt.Errorf("add prices: %w", err)
		}
	}
	if err := b.Send(); err != nil {
		return fmt.Errorf("add prices: %w", err)
	}
	return nil
}

// ValidPrices is what AddPrices refuses.
func ValidPrices(prices ...metering.Price) error {
	if len(prices) > MaxPrices {
		return fault.Newf(fault.InvalidArgument, fault.ReasonTooLarge, "more than %d prices at once", MaxPrices)
	}
	fields := map[string]string{}
	for i, p := range prices {
		prefix := ""
		if len(prices) > 1 {
			prefix = fmt.Sprintf("%d.", i)
		}
		maps.Copy(fields, wrong(p, prefix))
		// What is wrong is bounded, too.
		if len(fields) > 20 {
			break
		}
	}
	if len(fields) > 0 {
		return fault.New(fault.InvalidArgument, fault.ReasonValidation, "this is no price").WithFields(fields)
	}
	return nil
}

// Prices reads the whole list, in the order of tenant, meter, validity and version.
func (c *Conn) Prices(ctx context.Context) ([]metering.Price, error) {
	rows, err := c.query(ctx, "SELECT tenant_id, meter, valid_from, version, nanos, per, currency FROM agents.usage_prices FINAL ORDER BY tenant_id, meter, valid_from, version")
	if err != nil {
		return nil, unreadable(err)
	}
	defer func() { _ = rows.Close() }()
	var all []metering.Price
	for rows.Next() {
		var (
			p     metering.Price
			meter string
			from  time.Time
		)
		if err := rows.Scan(&p.Tenant, &meter, &from, &p.Version, &p.Nanos, &p.Per, &p.Currency); err != nil {
			return nil, unreadable(err)
		}
		p.Meter, p.From = metering.Meter(meter), from.UnixMilli()
		all = append(all, p)
	}
	if err := rows.Err(); err != nil {
		return nil, unreadable(err)
	}
	return all, nil
}

// Invoice reads the lines of the months that begin in [from, to), all of them where both are zero. tenant is empty for all.
func (c *Conn) Invoice(ctx context.Context, tenant string, from, to time.Time) ([]metering.Line, error) {
	if to.IsZero() {
		to = time.Date(2105, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	rows, err := c.query(final(ctx), "SELECT tenant_id, toDateTime(month, 'UTC'), meter, quantity, nanos, per, currency, agreed, price_from, price_version, amount_nanos"+
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
