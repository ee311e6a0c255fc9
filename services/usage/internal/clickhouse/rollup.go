package clickhouse

import (
	"context"
	"embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/sandtrail/sandtrail/libs/metering"
)

//go:embed sql/*.sql
var statements embed.FS

const (
	// Grace is how long after an hour's end it is closed, by the log's clock: the longest time between two samples of a sandbox, twice.
	Grace = 2 * time.Hour
	// rollChunk bounds the sandboxes whose hours are computed together.
	rollChunk = 1000
	// never stands for an hour that is not computed.
	never = int64(1) << 61
)

// Mark is a place in the log.
type Mark struct {
	// Life names the log and the mapping of rows; see project.Position.
	Life string
	// Seq is the last event, At when the log took it.
	Seq uint64
	At  time.Time
	// Schema is the version of the mapping.
	Schema uint16
	// generation names the tables that the mark is of: a rebuild puts others in their place.
	generation string
}

// Until is how far workspaces that are kept are billed: up to the last hour that was over, in Unix milliseconds.
func (m Mark) Until() int64 { return metering.Hour(m.At.UnixMilli()) }

func (m Mark) revision() uint64 { return m.Seq<<16 + uint64(m.Schema) }

// Marked is up to where the rollups are complete; the zero mark before the first.
func (c *Conn) Marked(ctx context.Context) (Mark, error) {
	rows, err := c.query(ctx, "SELECT name, life, stream_seq, at, bitAnd(revision, 65535) FROM agents.usage_rollup FINAL WHERE name IN ('all', 'generation')")
	if err != nil {
		return Mark{}, unreadable(err)
	}
	defer func() { _ = rows.Close() }()
	var m Mark
	for rows.Next() {
		var (
			name   string
			row    Mark
			schema uint64
		)
		if err := rows.Scan(&name, &row.Life, &row.Seq, &row.At, &schema); err != nil {
			return Mark{}, unreadable(err)
		}
		if name == "generation" {
			m.generation = row.Life
			continue
		}
		m.Life, m.Seq, m.At, m.Schema = row.Life, row.Seq, row.At, uint16(schema) //nolint:gosec // masked
	}
	if err := rows.Err(); err != nil {
		return Mark{}, unreadable(err)
	}
	return m, nil
}

// Roll makes the rollups complete up to m: every row of a fact up to there must stand. Of hours only what has changed is written.
// Done again, or by several at once, it gives the same; one that dies leaves hours that are newer than the mark says, and the
// next one goes on from the mark.
func (c *Conn) Roll(ctx context.Context, m Mark) error {
	ctx = final(ctx)
	was, err := c.Marked(ctx)
	if err != nil {
		return err
	}
	if was.Life != m.Life {
		if err := c.forget(ctx); err != nil {
			return err
		}
		was = Mark{}
	}
	late, err := c.lateNotes(ctx)
	if err != nil || m.Seq <= was.Seq && len(late) == 0 {
		return err
	}
	if m.Seq < was.Seq {
		m = was
	}
	all, err := c.dirty(ctx, was, m)
	if err != nil {
		return err
	}
	for len(all.tenants) > 0 {
		var some dirty
		some, all = all.cut(rollChunk)
		if err := c.hours(ctx, some, m); err != nil {
			return err
		}
	}
	return c.settle(ctx, was, m, late)
}

// dirty are sandboxes whose hours are computed anew, by columns; see sql/dirty.sql.
type dirty struct {
	tenants, sandboxes []string
	box, exec          []int64
}

func (d dirty) cut(n int) (head, rest dirty) {
	n = min(n, len(d.tenants))
	return dirty{d.tenants[:n], d.sandboxes[:n], d.box[:n], d.exec[:n]}, dirty{d.tenants[n:], d.sandboxes[n:], d.box[n:], d.exec[n:]}
}

func (c *Conn) dirty(ctx context.Context, was, m Mark) (dirty, error) {
	var d dirty
	// Since the last mark another hour may be over for all workspaces.
	since := metering.Hour(was.At.UnixMilli())
	if was.Seq == 0 {
		since = 0
	}
	rows, err := c.query(ctx, statement("dirty", m), was.Seq, m.Seq, since, was.Seq > 0 && was.Until() != m.Until(), m.Seq, since)
	if err != nil {
		return d, fmt.Errorf("find what has changed: %w", err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var (
			tenant    string
			sandbox   uuid.UUID
			box, exec int64
		)
		if err := rows.Scan(&tenant, &sandbox, &box, &exec); err != nil {
			return d, fmt.Errorf("find what has changed: %w", err)
		}
		d.tenants, d.sandboxes = append(d.tenants, tenant), append(d.sandboxes, sandbox.String())
		d.box, d.exec = append(d.box, box), append(d.exec, exec)
	}
	return d, rows.Err()
}

// hours writes the hours of some sandboxes that are not as they stand.
func (c *Conn) hours(ctx context.Context, d dirty, m Mark) error {
	err := c.exec(ctx, "INSERT INTO agents.usage_hourly_raw (tenant_id, sandbox_id, session_id, meter, hour, quantity, revision)\nWITH\n"+
		statement("spans", m)+statement("hourly", m), d.tenants, d.sandboxes, d.box, d.exec, m.revision())
	if err != nil {
		return fmt.Errorf("compute hours: %w", err)
	}
	return nil
}

// settle adds days up, closes and reopens windows, and moves the mark.
func (c *Conn) settle(ctx context.Context, was, m Mark, late []uuid.UUID) error {
	behind := was.revision()
	if m.Seq == was.Seq {
		// Only late rows came: what they changed has the revision of the mark.
		behind--
	}
	steps := []struct {
		query string
		args  []any
	}{
		{`INSERT INTO agents.usage_daily_raw (tenant_id, day, sandbox_id, session_id, meter, quantity, revision)
SELECT tenant_id, toDate(hour) AS day, sandbox_id, session_id, meter, sum(quantity), ?
FROM agents.usage_hourly_raw FINAL
WHERE (tenant_id, sandbox_id, toDate(hour)) IN (SELECT tenant_id, sandbox_id, toDate(hour) FROM agents.usage_hourly_raw WHERE revision > ?)
GROUP BY tenant_id, day, sandbox_id, session_id, meter`, []any{m.revision(), behind}},
		{statement("windows", m), []any{m.Seq, m.revision(), m.At.Add(-Grace).UnixMilli(), behind}},
		{
			// Where other tables were put in the place of those that were computed, the mark says nothing about them. The server decides
			// which table it writes to before it looks for the generation, so there is no time in between.
			"INSERT INTO agents.usage_rollup (name, life, stream_seq, at, revision) SELECT 'all', ?, ?, fromUnixTimestamp64Milli(toInt64(?), 'UTC'), ?" +
				" WHERE (SELECT max(life) FROM agents.usage_rollup FINAL WHERE name = 'generation') = ?",
			[]any{m.Life, m.Seq, m.At.UnixMilli(), m.revision(), was.generation},
		},
	}
	for _, s := range steps {
		if err := c.exec(ctx, s.query, s.args...); err != nil {
			return fmt.Errorf("settle rollups: %w", err)
		}
	}
	if len(late) == 0 {
		return nil
	}
	if now, err := c.Marked(ctx); err != nil || now.generation != was.generation {
		// What was late is not in the hours of the tables that stand now.
		return err
	}
	if err := c.exec(ctx, "DELETE FROM agents.usage_late WHERE note IN (SELECT toUUID(arrayJoin(?)))", texts(late)); err != nil {
		return fmt.Errorf("forget late rows: %w", err)
	}
	return nil
}

// Late says that a row of a sandbox was inserted behind the mark.
func (c *Conn) Late(ctx context.Context, tenant string, sandbox uuid.UUID) error {
	if err := c.exec(ctx, "INSERT INTO agents.usage_late (tenant_id, sandbox_id) SELECT ?, toUUID(?)", tenant, sandbox.String()); err != nil {
		return fmt.Errorf("note a late row: %w", err)
	}
	return nil
}

func (c *Conn) lateNotes(ctx context.Context) ([]uuid.UUID, error) {
	rows, err := c.query(ctx, "SELECT note FROM agents.usage_late")
	if err != nil {
		return nil, unreadable(err)
	}
	defer func() { _ = rows.Close() }()
	var all []uuid.UUID
	for rows.Next() {
		var id uuid.UUID
		if err := rows.Scan(&id); err != nil {
			return nil, unreadable(err)
		}
		all = append(all, id)
	}
	return all, rows.Err()
}

// forget removes the rollups. The mark goes first: without it all is computed anew.
func (c *Conn) forget(ctx context.Context) error {
	for _, table := range []string{"usage_rollup", "usage_hourly_raw", "usage_daily_raw", "usage_windows_raw", "usage_late"} {
		if err := c.exec(ctx, "TRUNCATE TABLE agents."+table); err != nil {
			return fmt.Errorf("remove the rollups: %w", err)
		}
	}
	return nil
}

func texts(all []uuid.UUID) []string {
	s := make([]string, len(all))
	for i, id := range all {
		s[i] = id.String()
	}
	return s
}

// statement is a file of sql with its constants. Values stay arguments.
func statement(name string, m Mark) string {
	text, err := statements.ReadFile("sql/" + name + ".sql")
	if err != nil {
		panic(err) // it is embedded
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			b.WriteString(line)
		}
	}
	return strings.NewReplacer(
		"{never}", "toInt64("+number(never)+")", "{longest}", "toUInt64("+number(metering.Longest)+")",
		"{upto}", strconv.FormatUint(m.Seq, 10), "{until}", number(m.Until()),
		"{fit}", "toUInt64(least(toUInt128('18446744073709551615'), toUInt128(", "{tif}", ")))",
	).Replace(b.String())
}
