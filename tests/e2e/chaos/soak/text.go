package soak

import (
	"fmt"
	"math"
	"strings"
	"text/tabwriter"
	"time"
)

// String is a table of all lines that are judged: leaks first, then what grows, then what stays; and what the checker of chaos says.
func (s *Summary) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d looks over %s, %d of them without all parts\n\n", len(s.Rows), span(s.Rows).Round(time.Second), s.Missed)
	b.WriteString(Table(s.Verdicts))
	if s.Chaos != nil {
		fmt.Fprintf(&b, "\n%s", s.Chaos)
	}
	fmt.Fprintf(&b, "\nleaks: %d; ok %t\n", len(Leaks(s.Verdicts)), s.OK())
	return b.String()
}

// Table has a line for each verdict, with the medians of the judged half's beginning and end and the slope.
func Table(all []Verdict) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "line\tverdict\tfrom\tto\tin an hour\t of each\t")
	for _, kind := range []Kind{Leaking, Growing, Flat, Short, Shown} {
		for _, v := range all {
			if v.Kind != kind {
				continue
			}
			why := v.Why
			if v.By != "" {
				why = fmt.Sprintf("%s of %s: %s", figure(v.Line, v.Cost), v.By, v.Why)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t %s\n", v.Line, v.Kind, figure(v.Line, v.First), figure(v.Line, v.Last), figure(v.Line, v.Slope), why)
		}
	}
	_ = w.Flush() // a Builder takes everything
	return b.String()
}

// figure writes a number with its unit.
func figure(line string, v float64) string {
	if !strings.HasSuffix(line, "bytes") {
		return fmt.Sprintf("%.4g", v)
	}
	for _, unit := range []struct {
		size float64
		name string
	}{{1 << 30, "GiB"}, {mib, "MiB"}, {kib, "KiB"}} {
		if math.Abs(v) >= unit.size {
			return fmt.Sprintf("%.3g %s", v/unit.size, unit.name)
		}
	}
	return fmt.Sprintf("%.3g B", v)
}
