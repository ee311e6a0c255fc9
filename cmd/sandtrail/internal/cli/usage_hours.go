package cli

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"math/big"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/metering"
	usageapp "github.com/sandtrail/sandtrail/services/usage/app"
)

// Rows are the flags of commands that read ClickHouse. They are for operators and for who bills: no tenant's key gives that right.
type Rows struct {
	ClickHouse string `name:"clickhouse" default:"clickhouse://default@127.0.0.1:9000" env:"SANDTRAIL_CLICKHOUSE" placeholder:"URL" group:"The rows" help:"The ClickHouse server; may hold a password, which is never printed. @FILE: the address is in a file, as that of the built-in one is in clickhouse/address of its state directory."`
}

// maxAddress bounds a file with an address, in bytes.
const maxAddress = 4096

// address is that of the server.
func (r *Rows) address() (string, error) {
	path, ok := strings.CutPrefix(r.ClickHouse, "@")
	if !ok {
		return r.ClickHouse, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", usagef("--clickhouse: %v", err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxAddress+1))
	if err != nil || len(text) > maxAddress {
		return "", usagef("--clickhouse: %s holds no address", path)
	}
	return strings.TrimSpace(string(text)), nil
}

// Chosen are the flags that choose quantities.
type Chosen struct {
	Tenant  string   `placeholder:"ID" group:"Which" help:"Only those of a tenant."`
	Session string   `placeholder:"ID" group:"Which" help:"Only those of a session."`
	Sandbox string   `placeholder:"ID" group:"Which" help:"Only those of a sandbox."`
	Meter   []string `placeholder:"METER" group:"Which" help:"Only these meters, e.g. sandbox_cpu_used."`
	Since   string   `placeholder:"TIME" group:"Which" help:"From this day or hour on, UTC: 2026-05-01, 2026-05-01T13:00:00Z, or an age such as 24h."`
	Until   string   `placeholder:"TIME" group:"Which" help:"Up to this day or hour, which is not part of it."`
}

func (c *Chosen) question() (usageapp.Question, error) {
	q := usageapp.Question{Tenant: c.Tenant, Session: c.Session, Sandbox: strings.ToLower(c.Sandbox)}
	if q.Sandbox != "" && !ids.Valid(q.Sandbox) {
		return q, usagef("--sandbox: %q is not an id", c.Sandbox)
	}
	for _, m := range c.Meter {
		if metering.Meter(m).Unit() == "" {
			return q, usagef("--meter: %q is none; docs/METERING.md lists them", m)
		}
		q.Meters = append(q.Meters, metering.Meter(m))
	}
	var err error
	if q.Since, err = hour("--since", c.Since); err != nil {
		return q, err
	}
	q.Until, err = hour("--until", c.Until)
	return q, err
}

// hour reads a day, an hour or an age, and gives the start of the hour; the zero time of nothing.
func hour(flag, s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return time.Now().Add(-d).UTC().Truncate(time.Hour), nil
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, s); err == nil {
			if t.UTC() != t.UTC().Truncate(time.Hour) {
				return t, usagef("%s: %q is not the start of an hour", flag, s)
			}
			return t.UTC(), nil
		}
	}
	return time.Time{}, usagef("%s: %q is neither a day, nor an hour, nor an age", flag, s)
}

// UsageShow is `sandtrail usage show`.
type UsageShow struct {
	Rows
	Chosen
	By      []string      `default:"tenant,day" placeholder:"WHAT" help:"Add up by these, of: tenant, session, sandbox, hour, day, month. Default: ${default}."`
	Output  string        `short:"o" default:"table" enum:"table,json,csv,parquet" help:"Print as ${enum}."`
	Timeout time.Duration `default:"1m" help:"Give up after this long."`
}

// Help is printed below the flags.
func (s *UsageShow) Help() string {
	return "Quantities are those of the rollups, in the units of docs/METERING.md; one row each of execs is `usage ls`."
}

// Run shows quantities.
func (s *UsageShow) Run(e *Env) error {
	q, err := s.question()
	if err != nil {
		return err
	}
	q.By = s.By
	return show(e, s.Rows, q, s.Output, s.Timeout)
}

// UsageTop is `sandtrail usage top`.
type UsageTop struct {
	Rows
	Chosen
	By      string        `arg:"" optional:"" default:"sandbox" enum:"tenant,session,sandbox" help:"Of what: ${enum}. Default: ${default}."`
	N       int           `short:"n" default:"10" help:"How many. Default: ${default}."`
	Output  string        `short:"o" default:"table" enum:"table,json,csv" help:"Print as ${enum}."`
	Timeout time.Duration `default:"1m" help:"Give up after this long."`
}

// Run shows who used most of one meter.
func (t *UsageTop) Run(e *Env) error {
	q, err := t.question()
	if err != nil {
		return err
	}
	switch {
	case len(q.Meters) > 1:
		return usagef("--meter: one at a time")
	case t.N < 1:
		return usagef("-n: %d is too few", t.N)
	case len(q.Meters) == 0:
		q.Meters = []metering.Meter{metering.SandboxCPUUsed}
	}
	if q.Since.IsZero() && q.Until.IsZero() {
		q.Since = time.Now().UTC().Add(-24 * time.Hour).Truncate(time.Hour)
	}
	q.By, q.Most, q.Limit = []string{t.By}, true, t.N
	return show(e, t.Rows, q, t.Output, t.Timeout)
}

func show(e *Env, r Rows, q usageapp.Question, output string, timeout time.Duration) error {
	if output == "parquet" && render.Terminal(e.Stdout) {
		return usagef("-o parquet: it is no text; write it to a file")
	}
	address, err := r.address()
	if err != nil {
		return err
	}
	ctx, stop := e.interruptible()
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	groups, err := usageapp.Show(ctx, address, q)
	if err != nil {
		return ended(ctx, err)
	}
	header := append(append([]string{}, q.By...), "meter", "quantity", "unit", "amount")
	switch output {
	case "json":
		return render.Value(e.Stdout, objects(q.By, groups))
	case "csv":
		return table(e.Stdout, header, groups)
	case "parquet":
		return writeParquet(e.Stdout, q.By, groups)
	}
	t := render.Table{}
	for _, h := range header {
		t.Header = append(t.Header, strings.ToUpper(h))
	}
	for _, g := range groups {
		t.Rows = append(t.Rows, cells(g))
	}
	return t.Write(e.Stdout)
}

func cells(g usageapp.Group) []string {
	return append(append([]string{}, g.Of...), string(g.Meter), strconv.FormatUint(g.Quantity, 10), g.Meter.Unit(), amount(g.Meter.Unit(), g.Quantity))
}

// table writes CSV. What a spreadsheet would take for a formula is made a text: session names are their tenant's.
func table(w io.Writer, header []string, groups []usageapp.Group) error {
	c := csv.NewWriter(w)
	if err := c.Write(header); err != nil {
		return err
	}
	for _, g := range groups {
		row := cells(g)
		for i, cell := range row {
			if cell != "" && strings.ContainsRune("=+-@\t\r", rune(cell[0])) {
				row[i] = "'" + cell
			}
		}
		if err := c.Write(row); err != nil {
			return err
		}
	}
	c.Flush()
	return c.Error()
}

// quantityJSON has quantities as texts: they may be larger than what a JSON number is read as.
type quantityJSON struct {
	Of       map[string]string `json:"of"`
	Meter    string            `json:"meter"`
	Quantity string            `json:"quantity"`
	Unit     string            `json:"unit"`
	Amount   string            `json:"amount"`
}

func objects(by []string, groups []usageapp.Group) []quantityJSON {
	all := make([]quantityJSON, 0, len(groups))
	for _, g := range groups {
		of := map[string]string{}
		for i, d := range by {
			of[d] = g.Of[i]
		}
		all = append(all, quantityJSON{of, string(g.Meter), strconv.FormatUint(g.Quantity, 10), g.Meter.Unit(), amount(g.Meter.Unit(), g.Quantity)})
	}
	return all
}

// amount is a quantity in larger units, exactly.
func amount(unit string, quantity uint64) string {
	switch unit {
	case metering.Milliseconds:
		return exact(quantity, 1, 3) + " s"
	case metering.CPUMicroseconds:
		return exact(quantity, 1, 6) + " cpu-s"
	case metering.MiBMilliseconds:
		// 1 / 1,024,000 = 9,765,625 / 10^13.
		return exact(quantity, 9_765_625, 13) + " GiB-s"
	case metering.Bytes:
		return render.Bytes(quantity)
	}
	return fmt.Sprint(quantity)
}

// exact is n x times / 10^digits, without zeros at its end.
func exact(n, times uint64, digits int) string {
	v := new(big.Int).Mul(new(big.Int).SetUint64(n), new(big.Int).SetUint64(times))
	s := v.String()
	if len(s) <= digits {
		s = strings.Repeat("0", digits-len(s)+1) + s
	}
	whole, rest := s[:len(s)-digits], strings.TrimRight(s[len(s)-digits:], "0")
	if rest == "" {
		return whole
	}
	return whole + "." + rest
}
