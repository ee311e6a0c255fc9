package soak

import (
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"
)

// Row is one look at everything: figures by the names of their lines.
type Row struct {
	At      time.Time
	Figures map[string]float64
}

// Lines are the names of all figures that any row has, sorted.
func Lines(rows []Row) []string {
	all := map[string]bool{}
	for _, r := range rows {
		for name := range r.Figures {
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// WriteCSV writes a row for each look: seconds since the first one, and a column for each line. What a look did not find is empty.
func WriteCSV(w io.Writer, rows []Row) error {
	names := Lines(rows)
	out := csv.NewWriter(w)
	if err := out.Write(append([]string{"seconds"}, names...)); err != nil {
		return fmt.Errorf("write figures: %w", err)
	}
	for _, r := range rows {
		record := []string{strconv.FormatFloat(r.At.Sub(rows[0].At).Seconds(), 'f', 1, 64)}
		for _, name := range names {
			text := ""
			if v, ok := r.Figures[name]; ok {
				text = strconv.FormatFloat(v, 'f', -1, 64)
			}
			record = append(record, text)
		}
		if err := out.Write(record); err != nil {
			return fmt.Errorf("write figures: %w", err)
		}
	}
	out.Flush()
	return out.Error()
}

// ReadCSV reads what WriteCSV wrote; the first look was at the zero time.
func ReadCSV(r io.Reader) ([]Row, error) {
	records, err := csv.NewReader(r).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read figures: %w", err)
	}
	var rows []Row
	for i, record := range records {
		if i == 0 {
			continue
		}
		row := Row{Figures: map[string]float64{}}
		for j, text := range record {
			if text == "" {
				continue
			}
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return nil, fmt.Errorf("read figures: %w", err)
			}
			if j == 0 {
				row.At = row.At.Add(time.Duration(v * float64(time.Second)))
				continue
			}
			row.Figures[records[0][j]] = v
		}
		rows = append(rows, row)
	}
	return rows, nil
}
