package cli

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/metering"
	usageapp "github.com/sandtrail/sandtrail/services/usage/app"
)

// UsagePrice is `sandtrail usage price`.
type UsagePrice struct {
	Ls     PriceLs     `cmd:"" help:"List prices, also those that were replaced."`
	Set    PriceSet    `cmd:"" help:"Add a price from an hour on."`
	Import PriceImport `cmd:"" help:"Add the prices of a CSV file, as usage price ls -o csv writes it."`
}

// PriceLs is `sandtrail usage price ls`.
type PriceLs struct {
	Rows
	Tenant  string        `placeholder:"ID" help:"Only what a tenant pays: its own prices and those for all."`
	Meter   string        `placeholder:"METER" help:"Only those of a meter."`
	Output  string        `short:"o" default:"table" enum:"table,json,csv" help:"Print as ${enum}."`
	Timeout time.Duration `default:"1m" help:"Give up after this long."`
}

// Run lists prices.
func (l *PriceLs) Run(e *Env) error {
	ctx, address, done, err := l.begin(e, l.Timeout)
	if err != nil {
		return err
	}
	defer done()
	all, err := usageapp.Prices(ctx, address)
	if err != nil {
		return ended(ctx, err)
	}
	all = slices.DeleteFunc(all, func(p metering.Price) bool {
		return l.Meter != "" && string(p.Meter) != l.Meter || l.Tenant != "" && p.Tenant != "" && p.Tenant != l.Tenant
	})
	switch l.Output {
	case "json":
		return render.Value(e.Stdout, pricesJSON(all))
	case "csv":
		return writePrices(e.Stdout, all)
	}
	return priceTable(all).Write(e.Stdout)
}

// begin bounds a command that only needs ClickHouse. Call done at the end.
func (r *Rows) begin(e *Env, timeout time.Duration) (ctx context.Context, address string, done func(), err error) {
	if address, err = r.address(); err != nil {
		return nil, "", nil, err
	}
	ctx, stop := e.interruptible()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	return ctx, address, func() {
		cancel()
		stop()
	}, nil
}

func priceTable(all []metering.Price) render.Table {
	t := render.Table{Header: []string{"TENANT", "METER", "VALID FROM", "VERSION", "PRICE", "PER", "STATE"}}
	for i, p := range all {
		tenant := p.Tenant
		if tenant == "" {
			tenant = "all"
		}
		per := strconv.FormatUint(p.Per, 10) + " " + p.Meter.Unit()
		if name, ok := metering.Denominate(p.Meter.Unit(), p.Per); ok {
			per = name
		}
		state := ""
		if i+1 < len(all) && all[i+1].Tenant == p.Tenant && all[i+1].Meter == p.Meter && all[i+1].From == p.From {
			state = "replaced"
		}
		t.Rows = append(t.Rows, []string{
			tenant, string(p.Meter), hourText(p.From), strconv.FormatUint(uint64(p.Version), 10), metering.FormatNanos(new(big.Int).SetUint64(p.Nanos)) + " " + p.Currency, per, state,
		})
	}
	return t
}

func hourText(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }

// priceJSON has 64-bit numbers as texts, as quantities are.
type priceJSON struct {
	Tenant    string `json:"tenant_id"`
	Meter     string `json:"meter"`
	ValidFrom string `json:"valid_from"`
	Version   uint32 `json:"version"`
	Nanos     string `json:"nanos"`
	Per       string `json:"per"`
	Currency  string `json:"currency"`
}

func pricesJSON(prices []metering.Price) []priceJSON {
	all := make([]priceJSON, 0, len(prices))
	for _, p := range prices {
		all = append(all, priceJSON{p.Tenant, string(p.Meter), hourText(p.From), p.Version, strconv.FormatUint(p.Nanos, 10), strconv.FormatUint(p.Per, 10), p.Currency})
	}
	return all
}

// priceColumns are those of a CSV file. version may be empty or absent: the next one.
var priceColumns = []string{"tenant_id", "meter", "valid_from", "version", "nanos", "per", "currency"}

func writePrices(w io.Writer, prices []metering.Price) error {
	c := csv.NewWriter(w)
	rows := [][]string{priceColumns}
	for _, p := range pricesJSON(prices) {
		rows = append(rows, []string{p.Tenant, p.Meter, p.ValidFrom, strconv.FormatUint(uint64(p.Version), 10), p.Nanos, p.Per, p.Currency})
	}
	return c.WriteAll(rows)
}

// readPrices reads a CSV file. Mistakes name their lines.
func readPrices(r io.Reader) ([]metering.Price, error) {
	c := csv.NewReader(r)
	header, err := c.Read()
	if err != nil {
		return nil, usagef("the file has no header: %v", err)
	}
	place := map[string]int{}
	for i, h := range header {
		if !slices.Contains(priceColumns, h) {
			return nil, usagef("line 1: %q is not one of %s", h, strings.Join(priceColumns, ", "))
		}
		place[h] = i
	}
	for _, h := range priceColumns {
		if _, ok := place[h]; !ok && h != "version" {
			return nil, usagef("line 1: column %s is missing", h)
		}
	}
	var all []metering.Price
	for {
		row, err := c.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, usagef("%v", err)
		}
		line, _ := c.FieldPos(0)
		p, err := parsePrice(func(name string) string {
			if i, ok := place[name]; ok {
				return row[i]
			}
			return ""
		})
		if err != nil {
			return nil, usagef("line %d: %v", line, err)
		}
		if all = append(all, p); len(all) > usageapp.MaxPrices {
			return nil, usagef("more than %d prices", usageapp.MaxPrices)
		}
	}
}

// validFrom reads a day or an hour. An age would be another time whenever it is read.
func validFrom(name, s string) (time.Time, error) {
	if _, err := time.ParseDuration(s); err == nil || s == "" {
		return time.Time{}, usagef("%s: %q is neither a day nor an hour", name, s)
	}
	return hour(name, s)
}

func parsePrice(cell func(string) string) (metering.Price, error) {
	p := metering.Price{Tenant: cell("tenant_id"), Meter: metering.Meter(cell("meter")), Currency: cell("currency")}
	if p.Meter.Unit() == "" {
		return p, fmt.Errorf("meter %q is none", p.Meter)
	}
	from, err := validFrom("valid_from", cell("valid_from"))
	if err != nil {
		return p, err
	}
	p.From = from.UnixMilli()
	for _, f := range []struct {
		name string
		bits int
		to   func(uint64)
	}{
		{"version", 32, func(n uint64) { p.Version = uint32(n) }}, //nolint:gosec // parsed with 32 bits
		{"nanos", 64, func(n uint64) { p.Nanos = n }},
		{"per", 64, func(n uint64) { p.Per = n }},
	} {
		text := cell(f.name)
		if text == "" && f.name == "version" {
			continue
		}
		n, err := strconv.ParseUint(text, 10, f.bits)
		if err != nil {
			return p, fmt.Errorf("%s %q is not a whole number", f.name, text)
		}
		f.to(n)
	}
	return p, nil
}

// Pricing are the flags of commands that add prices.
type Pricing struct {
	Past    bool          `help:"Also where it begins before the end of what is added up: invoices of the past change, and which is said."`
	Output  string        `short:"o" default:"table" enum:"table,json" help:"Print as ${enum}."`
	Timeout time.Duration `default:"1m" help:"Give up after this long."`
}

// PriceSet is `sandtrail usage price set`.
type PriceSet struct {
	Rows
	Pricing
	Meter    string `arg:"" help:"What is priced, e.g. sandbox_cpu_allocated."`
	Amount   string `arg:"" help:"What it costs, e.g. 0.036: at most nine decimals."`
	Currency string `arg:"" help:"Three letters, e.g. EUR."`
	Per      string `required:"" placeholder:"UNIT" help:"For how much: core-hour, core-second, gib-hour, gib-second, hour, second, gib, gb, byte, one, thousand, million, or a number of the meter's units."`
	From     string `required:"" placeholder:"TIME" help:"From this day or hour on, UTC: 2026-07-01, 2026-07-01T13:00:00Z."`
	Tenant   string `placeholder:"ID" help:"For a tenant; unless set, for all that have no price of their own."`
}

// Run adds a price.
func (s *PriceSet) Run(e *Env) error {
	m := metering.Meter(s.Meter)
	if m.Unit() == "" {
		return usagef("%q is no meter; docs/METERING.md lists them", s.Meter)
	}
	nanos, err := metering.ParseNanos(s.Amount)
	if err != nil {
		return usagef("%v", err)
	}
	from, err := validFrom("--from", s.From)
	if err != nil {
		return err
	}
	per, err := perUnits(m, s.Per)
	if err != nil {
		return err
	}
	return s.add(e, &s.Rows, []metering.Price{{Tenant: s.Tenant, Meter: m, From: from.UnixMilli(), Nanos: nanos, Per: per, Currency: s.Currency}})
}

// perUnits is how many units of a meter a price is for.
func perUnits(m metering.Meter, per string) (uint64, error) {
	var names []string
	for _, d := range metering.Denominations(m.Unit()) {
		if d.Name == per {
			return d.Units, nil
		}
		names = append(names, d.Name)
	}
	n, err := strconv.ParseUint(per, 10, 64)
	if err != nil || n == 0 {
		return 0, usagef("--per: %s is counted in %s, or a number of %s", m, strings.Join(names, ", "), m.Unit())
	}
	return n, nil
}

// PriceImport is `sandtrail usage price import`.
type PriceImport struct {
	Rows
	Pricing
	File string `arg:"" help:"The file, or - for the standard input."`
}

// Run adds the prices of a file, all or none.
func (i *PriceImport) Run(e *Env) error {
	var in io.Reader = e.Stdin
	if i.File != "-" {
		f, err := os.Open(i.File)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	prices, err := readPrices(io.LimitReader(in, maxPriceFile))
	if err != nil {
		return err
	}
	return i.add(e, &i.Rows, prices)
}

// maxPriceFile bounds a file of prices, in bytes.
const maxPriceFile = 4 << 20

type pricedJSON struct {
	Added   []priceJSON  `json:"added"`
	Changed []changeJSON `json:"invoices_changed"`
}

type changeJSON struct {
	Tenant   string `json:"tenant_id"`
	Month    string `json:"month"`
	Meter    string `json:"meter"`
	Currency string `json:"currency"`
	Was      string `json:"was"`
	Is       string `json:"is"`
}

func (p *Pricing) add(e *Env, rows *Rows, prices []metering.Price) error {
	ctx, address, done, err := rows.begin(e, p.Timeout)
	if err != nil {
		return err
	}
	defer done()
	r, err := usageapp.AddPrices(ctx, address, prices, p.Past)
	if err != nil {
		return ended(ctx, err)
	}
	out := pricedJSON{Added: pricesJSON(r.Added), Changed: []changeJSON{}}
	for _, c := range r.Changed {
		out.Changed = append(out.Changed, changeJSON{c.Tenant, c.Month.Format("2006-01"), string(c.Meter), c.Currency, amountOf(c.Was), amountOf(c.Is)})
	}
	if p.Output == "json" {
		return render.Value(e.Stdout, out)
	}
	if len(r.Added) == 0 {
		fmt.Fprintln(e.Stdout, "Nothing to add: it stands already.")
		return nil
	}
	if err := priceTable(r.Added).Write(e.Stdout); err != nil || len(out.Changed) == 0 {
		return err
	}
	fmt.Fprintln(e.Stdout, "\nInvoices that changed:")
	t := render.Table{Header: []string{"MONTH", "TENANT", "METER", "CURRENCY", "WAS", "IS"}}
	for _, c := range out.Changed {
		t.Rows = append(t.Rows, []string{c.Month, c.Tenant, c.Meter, c.Currency, c.Was, c.Is})
	}
	return t.Write(e.Stdout)
}

// amountOf is empty where there was no line.
func amountOf(n *big.Int) string {
	if n == nil {
		return ""
	}
	return metering.FormatNanos(n)
}
