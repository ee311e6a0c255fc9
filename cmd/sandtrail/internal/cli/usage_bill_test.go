package cli_test

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
)

type shown struct {
	Of              map[string]string
	Meter, Quantity string
	Unit            string
}

// fromParquet reads a file back, with dimensions as `usage show` spells them.
func fromParquet(t *testing.T, file string) []shown {
	t.Helper()
	r := parquet.NewReader(strings.NewReader(file))
	defer func() { require.NoError(t, r.Close()) }()
	var names []string
	for _, c := range r.Schema().Columns() {
		names = append(names, strings.Join(c, "."))
	}
	var all []shown
	for {
		rows := make([]parquet.Row, 7)
		n, err := r.ReadRows(rows)
		for _, row := range rows[:n] {
			s := shown{Of: map[string]string{}}
			for i, v := range row {
				switch names[i] {
				case "meter":
					s.Meter = v.String()
				case "unit":
					s.Unit = v.String()
				case "quantity":
					s.Quantity = fmt.Sprint(v.Uint64())
				case "day":
					s.Of["day"] = time.Unix(int64(v.Int32())*86_400, 0).UTC().Format(time.DateOnly)
				case "hour":
					s.Of["hour"] = time.UnixMilli(v.Int64()).UTC().Format(time.RFC3339)
				default:
					s.Of[names[i]] = v.String()
				}
			}
			all = append(all, s)
		}
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
	}
}

// A Parquet file holds what the JSON does, in every dimension.
func TestUsageAsParquetIsTheSameUsage(t *testing.T) {
	_, run := billed(t)
	for _, by := range []string{"tenant,day", "hour", "day,hour,month", "session,sandbox,tenant"} {
		var want []shown
		require.NoError(t, json.Unmarshal([]byte(run("show", "--by", by, "-o", "json").stdout), &want))
		require.NotEmpty(t, want)
		require.Equal(t, want, fromParquet(t, run("show", "--by", by, "-o", "parquet").stdout), by)
	}
	require.Empty(t, fromParquet(t, run("show", "--tenant", "nobody", "-o", "parquet").stdout))
}

func TestPricesAreListedAddedAndImportedAndInvoicesFollow(t *testing.T) {
	b, run := billed(t)
	t.Setenv("SANDTRAIL_CLICKHOUSE", "@"+b.admin)
	set := func(args ...string) result {
		return runCLI(nil, nil, append([]string{"usage", "price", "set"}, args...)...)
	}
	allocated := []string{"sandbox_cpu_allocated", "0.036", "EUR", "--per", "core-hour"}

	// The past is not changed by a price that does not say so.
	r := set(append(allocated, "--from", "2026-05-01")...)
	require.Equal(t, cli.ExitRefused, r.code, r.stdout)
	require.Contains(t, r.stderr, "would change invoices of the past")
	require.NotContains(t, run("price", "ls").stdout, "sandbox_cpu_allocated")
	out := run(append(append([]string{"price", "set"}, allocated...), "--from", "2026-05-01", "--past")...).stdout
	require.Regexp(t, `2026-05 +acme +sandbox_cpu_allocated +EUR +- +0\.003`, out)
	require.Contains(t, run("invoice", "2026-05").stdout, "300000000")

	// The same again adds nothing; another one replaces it, for all or for a tenant.
	require.Contains(t, run(append(append([]string{"price", "set"}, allocated...), "--from", "2026-05-01", "--past")...).stdout, "Nothing to add")
	out = run("price", "set", "sandbox_cpu_allocated", "0.072", "EUR", "--per", "core-hour", "--from", "2026-05-01", "--past").stdout
	require.Regexp(t, `2026-05 +acme +sandbox_cpu_allocated +EUR +0\.003 +0\.006`, out)
	out = run("price", "set", "sandbox_cpu_allocated", "0.012", "EUR", "--per", "core-hour", "--from", "2026-06-01", "--tenant", "acme", "--past", "-o", "json").stdout
	require.JSONEq(t, `[{"tenant_id":"acme","month":"2026-06","meter":"sandbox_cpu_allocated","currency":"EUR","was":"0.006","is":"0.001"}]`, field(t, out, "invoices_changed"))

	// What is written is read again, by any server.
	file := run("price", "ls", "-o", "csv").stdout
	rows, err := csv.NewReader(strings.NewReader(file)).ReadAll()
	require.NoError(t, err)
	require.Equal(t, [][]string{
		{"tenant_id", "meter", "valid_from", "version", "nanos", "per", "currency"},
		{"", "sandbox_cpu_allocated", "2026-05-01T00:00:00Z", "1", "36000000", "3600000000", "EUR"},
		{"", "sandbox_cpu_allocated", "2026-05-01T00:00:00Z", "2", "72000000", "3600000000", "EUR"},
		{"acme", "sandbox_cpu_allocated", "2026-06-01T00:00:00Z", "1", "12000000", "3600000000", "EUR"},
	}, rows)
	path := filepath.Join(t.TempDir(), "prices.csv")
	require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
	require.Contains(t, run("price", "import", path).stdout, "Nothing to add")
	require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(file, "12000000", "13000000")), 0o600))
	r = runCLI(nil, nil, "usage", "price", "import", "--past", path)
	require.Equal(t, cli.ExitRefused, r.code)
	require.Contains(t, r.stderr, "stands already")
	future := "tenant_id,meter,valid_from,nanos,per,currency\n,execs,2099-01-01,1000,1,EUR\nacme,execs,2099-01-01,900,1,EUR\n"
	r = runCLI([]byte(future), nil, "usage", "price", "import", "-")
	require.Equal(t, cli.ExitOK, r.code, r.stderr)
	require.Regexp(t, `acme +execs +2099-01-01T00:00:00Z +1 +0\.0000009 EUR +one`, run("price", "ls", "--tenant", "acme", "--meter", "execs").stdout)
}

func field(t *testing.T, document, name string) string {
	t.Helper()
	var all map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(document), &all))
	return string(all[name])
}

func TestWhatIsNoPriceIsRefusedWithItsPlace(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       "no header",
		"meter\n":                                "column tenant_id is missing",
		"tenant_id,colour\n":                     `"colour" is not one of`,
		header + ",none,2026-05-01,1,1,EUR\n":    "line 2: meter",
		header + ",execs,yesterday,1,1,EUR\n":    "line 2: valid_from",
		header + ",execs,24h,1,1,EUR\n":          "line 2: valid_from",
		header + ",execs,2026-05-01,-1,1,EUR\n":  "line 2: nanos",
		header + ",execs,2026-05-01,1,0x1,EUR\n": "line 2: per",
		header + ",execs,2026-05-01,1,1\n":       "wrong number of fields",
		header + strings.Repeat(",execs,2026-05-01,1,1,EUR\n", 10_001): "more than 10000",
	} {
		r := runCLI([]byte(text), nil, "usage", "price", "import", "-")
		require.Equal(t, cli.ExitUsage, r.code, "%q: %s", text[:min(len(text), 80)], r.stderr)
		require.Contains(t, r.stderr, want)
	}
	for _, args := range [][]string{
		{"execs", "1", "EUR", "--per", "core-hour", "--from", "2026-05-01"},
		{"execs", "1e3", "EUR", "--per", "one", "--from", "2026-05-01"},
		{"execs", "1", "EUR", "--per", "0", "--from", "2026-05-01"},
		{"execs", "1", "EUR", "--per", "one", "--from", "2026-05-01T00:30:00Z"},
		{"colour", "1", "EUR", "--per", "one", "--from", "2026-05-01"},
	} {
		r := runCLI(nil, nil, append([]string{"usage", "price", "set"}, args...)...)
		require.Equal(t, cli.ExitUsage, r.code, "%v: %s", args, r.stderr)
	}
	for _, args := range [][]string{
		{"execs", "1", "euro", "--per", "one", "--from", "2026-05-01"},
		{"execs", "1", "EUR", "--per", "one", "--from", "2026-05-01", "--tenant", "a b"},
	} {
		r := runCLI(nil, nil, append([]string{"usage", "price", "set"}, args...)...)
		require.Equal(t, cli.ExitRefused, r.code, "%v: %s", args, r.stderr)
	}
}

const header = "tenant_id,meter,valid_from,nanos,per,currency\n"
