package cli

import (
	"encoding/csv"
	"strconv"
	"time"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/metering"
	usageapp "github.com/sandtrail/sandtrail/services/usage/app"
)

// UsageInvoice is `sandtrail usage invoice`.
type UsageInvoice struct {
	Rows
	Month   string        `arg:"" help:"The month, UTC: 2026-05."`
	Tenant  string        `placeholder:"ID" help:"Only of a tenant."`
	Output  string        `short:"o" default:"table" enum:"table,json,csv" help:"Print as ${enum}."`
	Timeout time.Duration `default:"1m" help:"Give up after this long."`
}

// Help is printed below the flags.
func (i *UsageInvoice) Help() string {
	return "One line for each meter and price. An amount is quantity x price / per, rounded down once to a billionth; docs/METERING.md has one recomputed by hand."
}

type lineJSON struct {
	Tenant   string `json:"tenant_id"`
	Month    string `json:"month"`
	Meter    string `json:"meter"`
	Quantity string `json:"quantity"`
	Unit     string `json:"unit"`
	From     string `json:"price_from"`
	Version  uint32 `json:"price_version"`
	Nanos    string `json:"nanos"`
	Per      string `json:"per"`
	Amount   string `json:"amount"`
	Currency string `json:"currency"`
}

// Run prints the lines of a month.
func (i *UsageInvoice) Run(e *Env) error {
	month, err := time.Parse("2006-01", i.Month)
	if err != nil {
		return usagef("%q is no month such as 2026-05", i.Month)
	}
	ctx, address, done, err := i.begin(e, i.Timeout)
	if err != nil {
		return err
	}
	defer done()
	all, err := usageapp.Invoice(ctx, address, i.Tenant, month, month.AddDate(0, 1, 0))
	if err != nil {
		return ended(ctx, err)
	}
	lines := make([]lineJSON, 0, len(all))
	for _, l := range all {
		lines = append(lines, lineJSON{
			l.Tenant, time.UnixMilli(l.Month).UTC().Format("2006-01"), string(l.Meter), strconv.FormatUint(l.Quantity, 10), l.Meter.Unit(), hourText(l.Price.From),
			l.Price.Version, strconv.FormatUint(l.Price.Nanos, 10), strconv.FormatUint(l.Price.Per, 10), metering.FormatNanos(l.Nanos), l.Price.Currency,
		})
	}
	if i.Output == "json" {
		return render.Value(e.Stdout, lines)
	}
	header := []string{"TENANT", "MONTH", "METER", "QUANTITY", "UNIT", "PRICE FROM", "VERSION", "NANOS", "PER", "AMOUNT", "CURRENCY"}
	rows := make([][]string, 0, len(lines))
	for _, l := range lines {
		rows = append(rows, []string{l.Tenant, l.Month, l.Meter, l.Quantity, l.Unit, l.From, strconv.FormatUint(uint64(l.Version), 10), l.Nanos, l.Per, l.Amount, l.Currency})
	}
	if i.Output == "csv" {
		return csv.NewWriter(e.Stdout).WriteAll(append([][]string{{
			"tenant_id", "month", "meter", "quantity", "unit", "price_from", "price_version", "nanos", "per", "amount", "currency",
		}}, rows...))
	}
	return render.Table{Header: header, Rows: rows}.Write(e.Stdout)
}
