package evidence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
)

// asNumbers makes ClickHouse write numbers as numbers and times in one form.
const asNumbers = " FORMAT JSONEachRow SETTINGS output_format_json_quote_64bit_integers = 0, date_time_output_format = 'iso'"

// ReadRows reads both views of usage from ClickHouse over HTTP: one row for each exec, one for each sandbox.
func ReadRows(ctx context.Context, url string) (execs, sandboxes []Row, err error) {
	if execs, err = query(ctx, url, "SELECT * FROM agents.usage_events ORDER BY stream_seq, id"+asNumbers); err != nil {
		return nil, nil, fmt.Errorf("read the rows of execs: %w", err)
	}
	if sandboxes, err = query(ctx, url, "SELECT * FROM agents.sandbox_usage ORDER BY stream_seq, id"+asNumbers); err != nil {
		return nil, nil, fmt.Errorf("read the rows of sandboxes: %w", err)
	}
	return execs, sandboxes, nil
}

// ReadHours reads the quantities by hour, and up to where in the log they are complete; nil where nothing has been added up yet, or is
// just being added up.
func ReadHours(ctx context.Context, url string) (*Hours, error) {
	const mark = "SELECT stream_seq, toUnixTimestamp64Milli(at) AS at FROM agents.usage_rollup FINAL" + asNumbers
	before, err := query(ctx, url, mark)
	if err != nil {
		return nil, fmt.Errorf("read the mark of hours: %w", err)
	}
	rows, err := query(ctx, url, "SELECT tenant_id, sandbox_id, session_id, meter, toInt64(toUnixTimestamp(hour)) * 1000 AS hour, quantity FROM agents.usage_hourly"+asNumbers)
	if err != nil {
		return nil, fmt.Errorf("read hours: %w", err)
	}
	after, err := query(ctx, url, mark)
	if err != nil {
		return nil, fmt.Errorf("read the mark of hours: %w", err)
	}
	if len(after) != 1 || !reflect.DeepEqual(before, after) {
		return nil, nil //nolint:nilnil // as documented
	}
	return &Hours{Mark: after[0], Rows: rows}, nil
}

func query(ctx context.Context, url, sql string) ([]Row, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(url, "/")+"/", strings.NewReader(sql))
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
		return nil, fmt.Errorf("ClickHouse says %s: %s", res.Status, text)
	}
	rows := []Row{}
	d := json.NewDecoder(res.Body)
	d.UseNumber()
	for {
		var r Row
		err := d.Decode(&r)
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
}
