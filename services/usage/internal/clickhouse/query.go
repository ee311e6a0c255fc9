package clickhouse

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/sandtrail/sandtrail/libs/fault"
)

// MaxPage bounds the rows of one page.
const MaxPage = 200

// Filter chooses execs; an empty field chooses all.
type Filter struct {
	Tenant, Session string
	// Sandbox and Exec are UUIDs.
	Sandbox, Exec string
	// Limit is 1 to MaxPage; 0 is 50.
	Limit int
	// Cursor is what the page before gave.
	Cursor string
}

// List reads rows of agents.usage_events, newest first, and the cursor of the next page, empty on the last.
// fault.InvalidArgument: the filter. fault.Unavailable: the server.
func (c *Conn) List(ctx context.Context, f Filter) ([]Row, string, error) {
	where, args, err := f.conditions()
	if err != nil {
		return nil, "", err
	}
	limit := f.Limit
	if limit == 0 {
		limit = 50
	}
	q := "SELECT id, event_type, outcome, tenant_id, session_id, org_id, sandbox_id, exec_id, occurred_at, cpu_ms, memory_peak_bytes," +
		" memory_avg_bytes, disk_read_bytes, disk_write_bytes, network_egress_bytes, network_ingress_bytes, gpu_ms, gpu_memory_bytes," +
		" wall_time_ms, exit_code, signal, reason, stdout_bytes, stderr_bytes, usage_method, event_id, stream_seq, schema_version" +
		" FROM agents.usage_events" + where + " ORDER BY occurred_at DESC, id DESC LIMIT " + strconv.Itoa(limit+1)
	rows, err := c.query(ctx, q, args...)
	if err != nil {
		return nil, "", unreadable(err)
	}
	defer func() { _ = rows.Close() }()
	var list []Row
	for rows.Next() {
		var r Row
		if err := rows.Scan(
			&r.ID, &r.Type, &r.Outcome, &r.Tenant, &r.Session, &r.Org, &r.Sandbox, &r.Exec, &r.OccurredAt, &r.CPUMillis, &r.MemoryPeak,
			&r.MemoryAvg, &r.DiskRead, &r.DiskWrite, &r.Egress, &r.Ingress, &r.GPUMillis, &r.GPUMemory,
			&r.WallMillis, &r.ExitCode, &r.Signal, &r.Reason, &r.StdoutBytes, &r.StderrBytes, &r.Method, &r.EventID, &r.Seq, &r.Schema,
		); err != nil {
			return nil, "", unreadable(err)
		}
		list = append(list, r)
	}
	if err := rows.Err(); err != nil {
		return nil, "", unreadable(err)
	}
	if len(list) <= limit {
		return list, "", nil
	}
	list = list[:limit]
	last := list[limit-1]
	return list, cursor{last.OccurredAt, last.ID}.String(), nil
}

func unreadable(err error) error {
	return fault.New(fault.Unavailable, fault.ReasonInternal, "usage cannot be read now; try again").
		WithRetry(5 * time.Second).Because(err)
}

// conditions is the WHERE clause and its arguments. Every value is an argument, none is spelled into the text.
func (f Filter) conditions() (string, []any, error) {
	wrong := map[string]string{}
	var terms []string
	var args []any
	add := func(term string, values ...any) {
		terms, args = append(terms, term), append(args, values...)
	}
	if f.Tenant != "" {
		add("tenant_id = ?", f.Tenant)
	}
	if f.Session != "" {
		add("session_id = ?", f.Session)
	}
	for _, u := range []struct{ field, column, value string }{{"sandbox_id", "sandbox_id", f.Sandbox}, {"exec_id", "exec_id", f.Exec}} {
		if u.value == "" {
			continue
		}
		id, err := uuid.Parse(u.value)
		if err != nil {
			wrong[u.field] = "must be a UUID"
			continue
		}
		add(u.column+" = toUUID(?)", id.String())
	}
	if f.Limit < 0 || f.Limit > MaxPage {
		wrong["limit"] = fmt.Sprintf("must be 1 to %d", MaxPage)
	}
	if f.Cursor != "" {
		c, err := parseCursor(f.Cursor)
		if err != nil {
			wrong["cursor"] = "must be the next_cursor of a page"
		}
		add("(occurred_at, id) < (fromUnixTimestamp64Nano(toInt64(?), 'UTC'), toUUID(?))", strconv.FormatInt(c.at.UnixNano(), 10), c.id.String())
	}
	if len(wrong) > 0 {
		return "", nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "the filter of usage rows is not valid").WithFields(wrong)
	}
	if len(terms) == 0 {
		return "", nil, nil
	}
	return " WHERE " + strings.Join(terms, " AND "), args, nil
}

// cursor is the last row of a page.
type cursor struct {
	at time.Time
	id uuid.UUID
}

func (c cursor) String() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d.%s", c.at.UnixNano(), c.id))
}

func parseCursor(s string) (cursor, error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return cursor{}, err
	}
	at, id, _ := strings.Cut(string(b), ".")
	n, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return cursor{}, err
	}
	u, err := uuid.Parse(id)
	return cursor{at: time.Unix(0, n), id: u}, err
}
