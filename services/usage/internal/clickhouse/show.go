package clickhouse

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/metering"
)

// MaxGroups bounds the answer to Show.
const MaxGroups = 100_000

// dimensions are what quantities can be shown by, as ClickHouse says them.
var dimensions = map[string]string{
	"tenant": "tenant_id", "session": "session_id", "sandbox": "toString(sandbox_id)",
	"hour": "formatDateTime(hour, '%Y-%m-%dT%H:00:00Z', 'UTC')", "day": "formatDateTime(hour, '%Y-%m-%d', 'UTC')", "month": "formatDateTime(hour, '%Y-%m', 'UTC')",
}

// Dimensions are their names.
func Dimensions() []string { return slices.Sorted(maps.Keys(dimensions)) }

// Question chooses quantities of the rollups and what they are added up by. An empty field chooses all.
type Question struct {
	// By are dimensions, each at most once; none adds everything up.
	By                       []string
	Tenant, Session, Sandbox string
	Meters                   []metering.Meter
	// Since and Until are starts of hours, UTC; Until is not part of it.
	Since, Until time.Time
	// Most: the largest quantities first, otherwise in the order of By.
	Most bool
	// Limit is 1 to MaxGroups; 0 is MaxGroups.
	Limit int
}

// Group is a quantity of one meter. Of has the values of the dimensions.
type Group struct {
	Of       []string
	Meter    metering.Meter
	Quantity uint64
}

// Show answers from the rollups. fault.InvalidArgument: the question, with its fields. fault.Unavailable: the server.
func (c *Conn) Show(ctx context.Context, q Question) ([]Group, error) {
	query, args, err := q.query()
	if err != nil {
		return nil, err
	}
	rows, err := c.query(final(ctx), query, args...)
	if err != nil {
		return nil, unreadable(err)
	}
	defer func() { _ = rows.Close() }()
	var all []Group
	for rows.Next() {
		var g Group
		var meter string
		if err := rows.Scan(&g.Of, &meter, &g.Quantity); err != nil {
			return nil, unreadable(err)
		}
		g.Meter = metering.Meter(meter)
		all = append(all, g)
	}
	if err := rows.Err(); err != nil {
		return nil, unreadable(err)
	}
	return all, nil
}

// query is the text and its arguments. Every value is an argument.
func (q Question) query() (string, []any, error) {
	wrong := map[string]string{}
	var by []string
	hourly := !whole(q.Since) || !whole(q.Until)
	for i, d := range q.By {
		text, ok := dimensions[d]
		if !ok || slices.Contains(q.By[:i], d) {
			wrong["by"] = "must be different ones of " + strings.Join(Dimensions(), ", ")
			continue
		}
		hourly = hourly || d == "hour"
		by = append(by, text)
	}
	var terms []string
	var args []any
	add := func(term string, values ...any) { terms, args = append(terms, term), append(args, values...) }
	if q.Tenant != "" {
		add("tenant_id = ?", q.Tenant)
	}
	if q.Session != "" {
		add("session_id = ?", q.Session)
	}
	if q.Sandbox != "" {
		id, err := uuid.Parse(q.Sandbox)
		if err != nil {
			wrong["sandbox_id"] = "must be a UUID"
		}
		add("sandbox_id = toUUID(?)", id.String())
	}
	if len(q.Meters) > 0 {
		add("meter IN (?)", q.Meters)
		for _, m := range q.Meters {
			if m.Unit() == "" {
				wrong["meter"] = fmt.Sprintf("%q is none", m)
			}
		}
	}
	for field, t := range map[string]time.Time{"since": q.Since, "until": q.Until} {
		if !t.IsZero() && (t != t.Truncate(time.Hour) || t.Year() < 1970 || t.Year() > 2100) {
			wrong[field] = "must be the start of an hour between 1970 and 2100, UTC"
		}
	}
	if !q.Since.IsZero() {
		add("toInt64(toUnixTimestamp(hour)) >= ?", q.Since.Unix())
	}
	if !q.Until.IsZero() {
		add("toInt64(toUnixTimestamp(hour)) < ?", q.Until.Unix())
	}
	if q.Limit < 0 || q.Limit > MaxGroups {
		wrong["limit"] = fmt.Sprintf("must be 1 to %d", MaxGroups)
	}
	if len(wrong) > 0 {
		return "", nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "the question about usage is not valid").WithFields(wrong)
	}
	from := "agents.usage_hourly"
	if !hourly {
		// Days are fewer.
		from = "(SELECT tenant_id, session_id, sandbox_id, meter, toDateTime(day, 'UTC') AS hour, quantity FROM agents.usage_daily)"
	}
	text := "SELECT CAST([" + strings.Join(by, ", ") + "] AS Array(String)) AS of, meter, sum(quantity) AS total FROM " + from
	if len(terms) > 0 {
		text += " WHERE " + strings.Join(terms, " AND ")
	}
	text += " GROUP BY of, meter HAVING total > 0 ORDER BY "
	if q.Most {
		text += "total DESC, "
	}
	limit := q.Limit
	if limit == 0 {
		limit = MaxGroups
	}
	return text + fmt.Sprintf("of, meter LIMIT %d", limit), args, nil
}

// whole reports whether a time is the start of a day, or none.
func whole(t time.Time) bool { return t.Equal(t.Truncate(24 * time.Hour)) }

// Origin is where what stands under an id comes from.
type Origin struct {
	Tenant        string
	Sandbox, Exec uuid.UUID
}

// Find looks an id up: that of a usage row, an exec, an event, or a sandbox. false: there is no row of it.
func (c *Conn) Find(ctx context.Context, id uuid.UUID) (Origin, bool, error) {
	// Each by itself, because one condition about several columns would use none of their indexes.
	const one = "SELECT tenant_id, sandbox_id, %s AS exec FROM agents.usage_events_raw WHERE %s = toUUID(?) LIMIT 1"
	var each []string
	for _, of := range [][2]string{{"exec_id", "id"}, {"exec_id", "exec_id"}, {"exec_id", "event_id"}, {"toUUIDOrZero('')", "sandbox_id"}} {
		each = append(each, fmt.Sprintf("("+one+")", of[0], of[1]))
	}
	rows, err := c.query(ctx, "SELECT tenant_id, sandbox_id, exec FROM ("+strings.Join(each, " UNION ALL ")+") LIMIT 1", id.String(), id.String(), id.String(), id.String())
	if err != nil {
		return Origin{}, false, unreadable(err)
	}
	defer func() { _ = rows.Close() }()
	var o Origin
	found := false
	for rows.Next() {
		if err := rows.Scan(&o.Tenant, &o.Sandbox, &o.Exec); err != nil {
			return Origin{}, false, unreadable(err)
		}
		found = true
	}
	if err := rows.Err(); err != nil {
		return Origin{}, false, unreadable(err)
	}
	return o, found, nil
}
