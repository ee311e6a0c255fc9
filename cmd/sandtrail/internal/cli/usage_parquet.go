package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/parquet-go/parquet-go"

	usageapp "github.com/sandtrail/sandtrail/services/usage/app"
)

// parquetRows is how many rows are handed over together.
const parquetRows = 1024

// column is how a dimension stands in a Parquet file.
type column struct {
	node  parquet.Node
	value func(string) (parquet.Value, error)
}

var words = column{parquet.Compressed(parquet.Encoded(parquet.String(), &parquet.RLEDictionary), &parquet.Zstd), func(s string) (parquet.Value, error) { return parquet.ValueOf(s), nil }}

// kinds are the dimensions that are no texts.
var kinds = map[string]column{
	"hour": {parquet.Compressed(parquet.Timestamp(parquet.Millisecond), &parquet.Zstd), func(s string) (parquet.Value, error) {
		t, err := time.Parse(time.RFC3339, s)
		return parquet.ValueOf(t.UnixMilli()), err
	}},
	"day": {parquet.Compressed(parquet.Date(), &parquet.Zstd), func(s string) (parquet.Value, error) {
		t, err := time.Parse(time.DateOnly, s)
		return parquet.ValueOf(int32(t.Unix() / 86_400)), err //nolint:gosec // days until the year 2100
	}},
}

// writeParquet writes one row for each group: its dimensions (hour as a timestamp, day as a date, the others as texts), meter, unit, and the
// quantity as an unsigned number of 64 bits, which holds it exactly.
func writeParquet(w io.Writer, by []string, groups []usageapp.Group) error {
	fields := parquet.Group{"meter": words.node, "unit": words.node, "quantity": parquet.Compressed(parquet.Uint(64), &parquet.Zstd)}
	columns := make([]column, len(by))
	for i, d := range by {
		columns[i] = words
		if k, ok := kinds[d]; ok {
			columns[i] = k
		}
		fields[d] = columns[i].node
	}
	// A group has its columns in the order of their names.
	place := map[string]int{}
	for i, name := range slices.Sorted(maps.Keys(fields)) {
		place[name] = i
	}
	out := parquet.NewWriter(w, parquet.NewSchema("usage", fields))
	rows := make([]parquet.Row, 0, parquetRows)
	for n, g := range groups {
		row := make(parquet.Row, len(fields))
		put := func(name string, v parquet.Value) { row[place[name]] = v.Level(0, 0, place[name]) }
		for i, d := range by {
			v, err := columns[i].value(g.Of[i])
			if err != nil {
				return fmt.Errorf("write Parquet: %s: %w", d, err)
			}
			put(d, v)
		}
		put("meter", parquet.ValueOf(string(g.Meter)))
		put("unit", parquet.ValueOf(g.Meter.Unit()))
		put("quantity", parquet.ValueOf(g.Quantity))
		if rows = append(rows, row); len(rows) == parquetRows || n == len(groups)-1 {
			if _, err := out.WriteRows(rows); err != nil {
				return fmt.Errorf("write Parquet: %w", err)
			}
			rows = rows[:0]
		}
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("write Parquet: %w", err)
	}
	return nil
}
