package figure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	usage "github.com/sandtrail/sandtrail/services/usage/app"
	"github.com/sandtrail/sandtrail/tests/bench/live"
	"github.com/sandtrail/sandtrail/tests/bench/report"
	"github.com/sandtrail/sandtrail/tests/bench/sample"
)

const (
	// batch is the size of a direct insert, and of a sample.
	batch = 10_000
	// projectionRounds of an equal part of all batches each, by both ways in turn.
	projectionRounds = 2
	projectedBoxes   = 200
	projectionEnd    = 2 * time.Minute
)

// projected compares the usage service, from events in the log to rows in ClickHouse, with the same rows inserted directly.
func projected(ctx context.Context, b *Bench) (rows []report.Row, err error) {
	dir, err := os.MkdirTemp("", "sandtrail-bench-clickhouse-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	engine, err := usage.StartEngine(ctx, filepath.Join(dir, "data"), b.log)
	if err != nil {
		return nil, err
	}
	defer engine.Close()
	address := engine.URL()
	options, err := clickhouse.ParseDSN(address)
	if err != nil {
		return nil, errors.New("the engine's address is not valid")
	}
	options.Compression = &clickhouse.Compression{Method: clickhouse.CompressionLZ4}
	conn, err := clickhouse.Open(options)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	s, err := startServer(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()

	// The service inserts twice as many rows at once, and each of its inserts is a sample.
	batches := max(2, b.count(2*max(b.Runs, 30))/projectionRounds)
	var ours, theirs sample.Values
	for round := range projectionRounds {
		b.say("projection: %d rows, round %d of %d", batches*batch, round+1, projectionRounds)
		rates, err := projectRows(ctx, b, s, conn, address, round, batches)
		if err != nil {
			return nil, err
		}
		ours = append(ours, rates...)
		if rates, err = insertRows(ctx, conn, round, batches); err != nil {
			return nil, fmt.Errorf("direct insert: %w", err)
		}
		theirs = append(theirs, rates...)
	}
	return []report.Row{{
		Name: "usage: events projected into rows", Unit: "rows/s", Ours: ours.Median(), Baseline: theirs.Median(), Against: "the same rows inserted directly in batches of 10,000", Samples: min(len(ours), len(theirs)),
		Target: report.RatioAtLeast(0.5), Note: "From events that stand in the log to rows in the table: fetched, decoded, mapped, inserted, and the checkpoint stored. The baseline inserts the columns of these very rows, read before, into a second table of the same definition. ClickHouse runs on the same CPUs.",
	}}, nil
}

// projectRows puts events into the log, runs the usage service until their rows are there, and gives the rate of each 10,000.
func projectRows(ctx context.Context, b *Bench, s *server, conn driver.Conn, address string, round, batches int) (rates sample.Values, err error) {
	boxes := make([]subject.Aggregate, projectedBoxes)
	for i := range boxes {
		boxes[i] = subject.Sandbox(live.Tenant, ids.New())
	}
	n := batches * batch
	err = s.fill(n, func(i int) (subject.Aggregate, envelope.Event) {
		return subject.Exec(live.Tenant, boxes[i%len(boxes)].ID, ids.New()), completed()
	})
	if err != nil {
		return nil, fmt.Errorf("fill the log: %w", err)
	}
	metrics := prometheus.NewRegistry()
	a, err := usage.New(ctx, usage.Config{ClickHouse: address}, usage.Deps{NC: s.nc, JS: s.js, Log: b.log, Registerer: metrics})
	if err != nil {
		return nil, err
	}
	run, cancel := context.WithTimeout(ctx, projectionEnd)
	ended := make(chan error, 1)
	slices := sample.NewSlices(batch)
	go func() { ended <- a.Run(run) }()
	defer func() {
		cancel()
		err = errors.Join(err, <-ended)
	}()
	// Asking ClickHouse all the time would cost it what the direct inserts do not have to share.
	for {
		rows, err := inserted(metrics)
		if err != nil {
			return nil, err
		}
		slices.Mark(rows)
		if rows >= float64(n) {
			break
		}
		if err := rest(run, 10*time.Millisecond); err != nil {
			return nil, fmt.Errorf("%.0f rows are there: %w", rows, err)
		}
	}
	var count uint64
	if err := conn.QueryRow(run, "SELECT count() FROM agents.usage_events").Scan(&count); err != nil {
		return nil, err
	}
	if want := uint64(round+1) * uint64(n); count != want {
		return nil, fmt.Errorf("%d rows of %d", count, want)
	}
	return slices.Rates(), nil
}

// inserted is how many rows the usage service says that ClickHouse has taken.
func inserted(metrics prometheus.Gatherer) (float64, error) {
	families, err := metrics.Gather()
	if err != nil {
		return 0, err
	}
	for _, f := range families {
		if f.GetName() == "sandtrail_usage_rows_total" {
			return f.GetMetric()[0].GetCounter().GetValue(), nil
		}
	}
	return 0, errors.New("the usage service does not count rows")
}

// insertRows inserts what was projected in the round a second time, into a table of its own.
func insertRows(ctx context.Context, conn driver.Conn, round, batches int) (rates sample.Values, err error) {
	if err := conn.Exec(ctx, "CREATE TABLE IF NOT EXISTS agents.bench_direct AS agents.usage_events_raw"); err != nil {
		return nil, err
	}
	for i := range batches {
		names, columns, err := readRows(ctx, conn, (round*batches+i)*batch)
		if err != nil {
			return nil, fmt.Errorf("read rows: %w", err)
		}
		begin := time.Now()
		insert, err := conn.PrepareBatch(ctx, "INSERT INTO agents.bench_direct ("+strings.Join(names, ", ")+")")
		if err != nil {
			return nil, err
		}
		for c, values := range columns {
			if err := insert.Column(c).Append(values); err != nil {
				return nil, fmt.Errorf("column %s: %w", names[c], err)
			}
		}
		if err := insert.Send(); err != nil {
			return nil, err
		}
		rates.Add(batch / time.Since(begin).Seconds())
	}
	return rates, nil
}

// readRows reads a batch of rows by column: slices of the types that an insert takes.
func readRows(ctx context.Context, conn driver.Conn, offset int) (names []string, columns []any, err error) {
	rows, err := conn.Query(ctx, fmt.Sprintf("SELECT * EXCEPT ingested_at FROM agents.usage_events_raw ORDER BY stream_seq LIMIT %d OFFSET %d", batch, offset))
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	names = rows.Columns()
	slices, row := make([]reflect.Value, len(names)), make([]any, len(names))
	for i, t := range rows.ColumnTypes() {
		slices[i] = reflect.MakeSlice(reflect.SliceOf(t.ScanType()), 0, batch)
		row[i] = reflect.New(t.ScanType()).Interface()
	}
	for rows.Next() {
		for i := range row {
			row[i] = reflect.New(slices[i].Type().Elem()).Interface()
		}
		if err := rows.Scan(row...); err != nil {
			return nil, nil, err
		}
		for i := range row {
			slices[i] = reflect.Append(slices[i], reflect.ValueOf(row[i]).Elem())
		}
	}
	for _, s := range slices {
		if s.Len() != batch {
			return nil, nil, fmt.Errorf("%d rows of %d", s.Len(), batch)
		}
		columns = append(columns, s.Interface())
	}
	return names, columns, rows.Err()
}
