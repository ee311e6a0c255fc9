package app_test

import (
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/metering"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/services/usage/app"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
	"github.com/sandtrail/sandtrail/services/usage/internal/engine"
	"github.com/sandtrail/sandtrail/services/usage/internal/enginetest"
	"github.com/sandtrail/sandtrail/services/usage/migrations"
)

// documented are the users of the page about metering, with the rights that it grants them.
func documented(t *testing.T) map[string]engine.User {
	t.Helper()
	page, err := os.ReadFile("../../../docs/METERING.md")
	require.NoError(t, err)
	users := map[string]engine.User{}
	for _, m := range regexp.MustCompile(`(?m)^    GRANT (.+) TO ([a-z_]+)$`).FindAllStringSubmatch(string(page), -1) {
		u := users[m[2]]
		u.Grants = append(u.Grants, m[1])
		users[m[2]] = u
	}
	policy := regexp.MustCompile("(?s)`CREATE ROW POLICY acme ON (.+?) FOR SELECT USING (.+?) TO sandtrail_acme`").FindStringSubmatch(string(page))
	require.NotNil(t, policy)
	acme := users["sandtrail_acme"]
	acme.Policies = map[string]string{}
	for _, table := range strings.FieldsFunc(policy[1], func(r rune) bool { return r == ',' || r == ' ' || r == '\n' }) {
		acme.Policies[strings.TrimPrefix(table, "agents.")] = strings.ReplaceAll(policy[2], "acme", "tenant-1")
	}
	require.Len(t, acme.Policies, 5)
	users["sandtrail_acme"] = acme
	return users
}

// Each user of the page can do what it is for, and nothing of what it is not.
func TestTheUsersOfThePageCanDoTheirWorkAndNothingElse(t *testing.T) {
	users := documented(t)
	require.Len(t, users, 5)
	e, n := enginetest.StartWith(t, users), natstest.Start(t)
	schema, service, prices, bills, acme := e.As("sandtrail_schema"), e.As("sandtrail_service"), e.As("sandtrail_prices"), e.As("sandtrail_bills"), e.As("sandtrail_acme")
	enginetest.Open(t, schema)
	newAuthor(t, n.JS, 5).write(400)
	_, stop := serve(t, n, service)
	same(t, n.JS, bills)
	r, err := app.Rebuild{JS: n.JS, Log: slog.New(slog.DiscardHandler), Address: schema, Swap: true}.Run(t.Context())
	require.NoError(t, err)
	require.True(t, r.Swapped)
	same(t, n.JS, bills)
	stop()
	_, err = app.AddPrices(t.Context(), prices, []metering.Price{{Meter: metering.Execs, Nanos: 1, Per: 1, Currency: "EUR"}}, true)
	require.NoError(t, err)
	lines, err := app.Invoice(t.Context(), bills, "", time.Time{}, time.Time{})
	require.NoError(t, err)
	require.NotEmpty(t, lines)

	tenants := map[string]bool{}
	hours, _, err := app.Hours(t.Context(), acme, "", false)
	require.NoError(t, err)
	for k := range hours {
		tenants[k.Tenant] = true
	}
	rows, _, err := app.List(t.Context(), acme, app.Filter{})
	require.NoError(t, err)
	require.NotEmpty(t, rows)
	for _, r := range rows {
		tenants[r.Tenant] = true
	}
	require.Equal(t, map[string]bool{"tenant-1": true}, tenants, "a tenant sees another's")

	for user, statements := range map[string][]string{
		service: {"DROP TABLE agents.usage_hourly_raw", "ALTER TABLE agents.usage_events_raw DELETE WHERE 1", "CREATE TABLE agents.x (a UInt8) ENGINE = Memory", "CREATE DATABASE other"},
		schema:  {"DROP DATABASE default", "CREATE USER other", "CREATE TABLE default.x (a UInt8) ENGINE = Memory"},
		prices:  {"ALTER TABLE agents.usage_prices DELETE WHERE 1", "TRUNCATE TABLE agents.usage_prices", "INSERT INTO agents.usage_hourly_raw (meter) VALUES ('x')"},
		bills:   {"INSERT INTO agents.usage_prices (meter) VALUES ('x')", "TRUNCATE TABLE agents.usage_rollup", "SELECT * FROM file('/etc/passwd', 'LineAsString')", "SELECT * FROM default.sandtrail_usage_schema"},
		acme:    {"INSERT INTO agents.usage_late (tenant_id) VALUES ('x')", "SELECT * FROM default.sandtrail_usage_schema"},
	} {
		conn := open(t, user)
		for _, s := range statements {
			err := conn.Exec(t.Context(), s)
			require.True(t, clickhouse.Refused(err), "%s: %v", s, err)
			require.ErrorContains(t, err, "Not enough privileges", s)
		}
	}
}

// There is no cluster here, but a real server reads each statement for one, and it is the replicated form.
func TestAServerReadsTheStatementsForACluster(t *testing.T) {
	e := enginetest.Start(t, "")
	conn := open(t, e.URL())
	files, err := migrations.Files.ReadDir(".")
	require.NoError(t, err)
	require.Len(t, files, 3)
	engines := 0
	for _, f := range files {
		text, err := migrations.Files.ReadFile(f.Name())
		require.NoError(t, err)
		var statement strings.Builder
		for line := range strings.Lines(string(migrations.OnCluster(text, "c"))) {
			if strings.HasPrefix(line, "--") {
				continue
			}
			statement.WriteString(line)
			if !strings.HasSuffix(strings.TrimSpace(line), ";") {
				continue
			}
			s := strings.TrimSpace(statement.String())
			statement.Reset()
			require.Contains(t, s, "ON CLUSTER 'c'")
			require.NotRegexp(t, `(?m)^CREATE (TABLE|VIEW) agents`, s, "it could not be done twice")
			if strings.HasPrefix(s, "CREATE TABLE") {
				require.Regexp(t, `ENGINE = Replicated(Replacing)?MergeTree`, s)
				engines++
			}
			require.NoError(t, conn.Exec(t.Context(), "EXPLAIN AST "+strings.TrimSuffix(s, ";")), s)
		}
		require.Empty(t, strings.TrimSpace(statement.String()))
	}
	require.Equal(t, 7, engines)
}
