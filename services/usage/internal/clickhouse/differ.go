package clickhouse

import (
	"context"
	"fmt"
	"strings"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/google/uuid"

	"github.com/sandtrail/sandtrail/libs/metering"
)

// FactDifference is a row of a fact that does not stand as the log says.
type FactDifference struct {
	Tenant      string
	Sandbox, ID uuid.UUID
	// Stands and Made are what the table has and what was made from the log; nil where there is no such row.
	Stands, Made *FactRow
}

// FactRow is the part of a row that is shown.
type FactRow struct {
	Type, Outcome string
	Seq           uint64
	CPUMillis     uint64
	WallMillis    uint64
}

// WindowTotal is what all sandboxes of a tenant used of a meter on a day, where the two do not agree.
type WindowTotal struct {
	Tenant       string
	Day          time.Time
	Meter        metering.Meter
	Stands, Made uint64
}

// Differences are those between the service's tables and the shadow's, as of a mark.
type Differences struct {
	// Stand and Made are how many rows of facts there are.
	Stand, Made uint64
	// Missing rows are those of events that have none; Changed ones are not what their event says; Foreign ones are of no event.
	Missing, Changed, Foreign uint64
	// First are some of them.
	First []FactDifference
	// Hours and Days are how many quantities do not agree; Windows are the totals that do not.
	Hours, Days uint64
	Windows     []WindowTotal
	FirstHours  []metering.Difference
}

// Same reports whether there is none.
func (d Differences) Same() bool { return d.Missing+d.Changed+d.Foreign+d.Hours+d.Days == 0 }

const (
	// factKey is what identifies a row.
	factKey = "tenant_id, sandbox_id, id"
	// spill is from how many bytes on a comparison uses the disk.
	spill = 500_000_000
)

// hashed is a number made from all that a row says, but for when it was inserted.
var hashed = func() string {
	all := make([]string, 0, len(columns))
	for _, c := range columns {
		if c.name == "exit_code" {
			all = append(all, "ifNull(toInt64(exit_code), 1099511627776)")
			continue
		}
		all = append(all, c.name)
	}
	return "cityHash64(" + strings.Join(all, ", ") + ")"
}()

// comparing makes FINAL see all partitions and every row, whatever is asked about it.
func comparing(ctx context.Context) context.Context {
	return ch.Context(ctx, ch.WithSettings(ch.Settings{
		"do_not_merge_across_partitions_select_final": 0, "use_skip_indexes_if_final": 0, "max_bytes_before_external_group_by": spill,
	}))
}

// Differ compares as of a mark that both sets of tables have. What the service has written since is left out. limit bounds the rows of
// each kind that are given.
func (s *Shadow) Differ(ctx context.Context, m Mark, limit int) (Differences, error) {
	var d Differences
	ctx = comparing(ctx)
	tenants, err := s.tenants(ctx, m, &d)
	if err == nil && len(tenants) > 0 {
		err = s.facts(ctx, m, tenants, limit, &d)
	}
	if err == nil {
		err = s.quantities(ctx, limit, &d)
	}
	if err != nil {
		return d, fmt.Errorf("compare with the shadow tables: %w", err)
	}
	return d, nil
}

// sides are the rows of both as of a mark: side 0 stands, side 1 was made. The row of a sandbox moves on with each of its facts, so it is left
// out where there is a later one on either side.
func (s *Shadow) sides(m Mark) string {
	side := func(db string, n int) string {
		return fmt.Sprintf("SELECT %s, occurred_at, event_type, outcome, stream_seq, cpu_ms, wall_time_ms, %s AS h, %d AS side FROM (SELECT * FROM %s.usage_events_raw FINAL)"+
			" WHERE stream_seq <= %d AND (%s) NOT IN (SELECT %[1]s FROM newer)", factKey, hashed, n, db, m.Seq, factKey)
	}
	newer := func(db string) string {
		return fmt.Sprintf("SELECT %s FROM %s.usage_events_raw WHERE stream_seq > %d AND event_type = '%s'", factKey, db, m.Seq, SandboxUptime)
	}
	return "WITH newer AS (" + newer(live) + " UNION ALL " + newer(shadowDatabase) + "),\nsides AS (" + side(live, 0) + " UNION ALL " + side(shadowDatabase, 1) + ")\n"
}

// tenants counts rows, and gives the tenants that have any which do not agree.
func (s *Shadow) tenants(ctx context.Context, m Mark, d *Differences) ([]string, error) {
	rows, err := s.conn.Query(ctx, s.sides(m)+"SELECT tenant_id, countIf(side = 0) AS stand, countIf(side = 1) AS made, sumIf(h, side = 0) = sumIf(h, side = 1) AS same"+
		" FROM sides GROUP BY tenant_id")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var all []string
	for rows.Next() {
		var (
			tenant      string
			stand, made uint64
			same        uint8
		)
		if err := rows.Scan(&tenant, &stand, &made, &same); err != nil {
			return nil, err
		}
		d.Stand, d.Made = d.Stand+stand, d.Made+made
		if stand != made || same == 0 {
			all = append(all, tenant)
		}
	}
	return all, rows.Err()
}

// maxTenants bounds how many are looked at by name; of more, all are.
const maxTenants = 1000

// facts counts the rows that do not agree and gives the first of them.
func (s *Shadow) facts(ctx context.Context, m Mark, tenants []string, limit int, d *Differences) error {
	text := s.sides(m) + "SELECT %s FROM (SELECT " + factKey + ", countIf(side = 0) AS stand, countIf(side = 1) AS made, anyIf(h, side = 0) AS hash_was, anyIf(h, side = 1) AS hash_is," +
		" anyIf((toString(event_type), toString(outcome), stream_seq, cpu_ms, wall_time_ms), side = 0) AS fact_was," +
		" anyIf((toString(event_type), toString(outcome), stream_seq, cpu_ms, wall_time_ms), side = 1) AS fact_is" +
		" FROM sides WHERE ? OR tenant_id IN (?) GROUP BY " + factKey + " HAVING stand != made OR hash_was != hash_is)"
	every := len(tenants) > maxTenants
	if every {
		tenants = tenants[:1]
	}
	rows, err := s.conn.Query(ctx, fmt.Sprintf(text, "countIf(stand = 0), countIf(stand > 0 AND made > 0), countIf(made = 0)"), every, tenants)
	if err != nil {
		return err
	}
	if err := single(rows, &d.Missing, &d.Changed, &d.Foreign); err != nil || limit == 0 {
		return err
	}
	const cells = "%[1]s.1, %[1]s.2, %[1]s.3, %[1]s.4, %[1]s.5"
	rows, err = s.conn.Query(ctx, fmt.Sprintf(text, factKey+", stand, made, "+fmt.Sprintf(cells, "fact_was")+", "+fmt.Sprintf(cells, "fact_is"))+
		fmt.Sprintf(" ORDER BY %s LIMIT %d", factKey, limit), every, tenants)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var (
			f           FactDifference
			was, is     FactRow
			stand, made uint64
		)
		if err := rows.Scan(&f.Tenant, &f.Sandbox, &f.ID, &stand, &made, &was.Type, &was.Outcome, &was.Seq, &was.CPUMillis, &was.WallMillis,
			&is.Type, &is.Outcome, &is.Seq, &is.CPUMillis, &is.WallMillis); err != nil {
			return err
		}
		if stand > 0 {
			f.Stands = &was
		}
		if made > 0 {
			f.Made = &is
		}
		d.First = append(d.First, f)
	}
	return rows.Err()
}

func single(rows rowsOf, dest ...any) error {
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := rows.Scan(dest...); err != nil {
			return err
		}
	}
	return rows.Err()
}

// quantities compares hours and days.
func (s *Shadow) quantities(ctx context.Context, limit int, d *Differences) error {
	differing := func(table, window string) string {
		side := "SELECT tenant_id, sandbox_id, session_id, meter, " + window + ", quantity, %d AS side FROM %s." + table + " FINAL WHERE quantity > 0"
		return "(SELECT tenant_id, sandbox_id, session_id, meter, " + window + ", sumIf(quantity, side = 0) AS stands, sumIf(quantity, side = 1) AS made FROM (" +
			fmt.Sprintf(side, 0, live) + " UNION ALL " + fmt.Sprintf(side, 1, shadowDatabase) + ") GROUP BY tenant_id, sandbox_id, session_id, meter, " + window + " HAVING stands != made)"
	}
	rows, err := s.conn.Query(ctx, "SELECT (SELECT count() FROM "+differing("usage_hourly_raw", "hour")+"), (SELECT count() FROM "+differing("usage_daily_raw", "day")+")")
	if err != nil {
		return err
	}
	if err := single(rows, &d.Hours, &d.Days); err != nil || d.Hours+d.Days == 0 || limit == 0 {
		return err
	}
	rows, err = s.conn.Query(ctx, fmt.Sprintf("SELECT tenant_id, sandbox_id, session_id, meter, toInt64(toUnixTimestamp(hour)) * 1000 AS at, stands, made FROM "+
		differing("usage_hourly_raw", "hour")+" ORDER BY tenant_id, at, sandbox_id, session_id, meter LIMIT %d", limit))
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var (
			f       metering.Difference
			sandbox uuid.UUID
			meter   string
		)
		if err := rows.Scan(&f.Tenant, &sandbox, &f.Session, &meter, &f.Hour, &f.Have, &f.Want); err != nil {
			return err
		}
		f.Sandbox, f.Meter = sandbox.String(), metering.Meter(meter)
		d.FirstHours = append(d.FirstHours, f)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return s.windows(ctx, limit, d)
}

// windows gives the totals of days that do not agree.
func (s *Shadow) windows(ctx context.Context, limit int, d *Differences) error {
	side := "SELECT tenant_id, meter, toDate(hour) AS day, quantity, %d AS side FROM %s.usage_hourly_raw FINAL"
	rows, err := s.conn.Query(ctx, fmt.Sprintf("SELECT tenant_id, meter, toInt64(toUnixTimestamp(toDateTime(day, 'UTC'))) AS at, sumIf(quantity, side = 0) AS stands, sumIf(quantity, side = 1) AS made FROM ("+
		fmt.Sprintf(side, 0, live)+" UNION ALL "+fmt.Sprintf(side, 1, shadowDatabase)+") GROUP BY tenant_id, meter, day HAVING stands != made ORDER BY tenant_id, at, meter LIMIT %d", limit))
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var (
			w     WindowTotal
			meter string
			at    int64
		)
		if err := rows.Scan(&w.Tenant, &meter, &at, &w.Stands, &w.Made); err != nil {
			return err
		}
		w.Meter, w.Day = metering.Meter(meter), time.Unix(at, 0).UTC()
		d.Windows = append(d.Windows, w)
	}
	return rows.Err()
}
