// Package report is the table of figures: each beside its baseline, with its target and whether it is met.
package report

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// Row is one figure.
type Row struct {
	Name string
	// Unit of Ours and Baseline, such as ms or MB/s.
	Unit string
	Ours float64
	// Baseline is what Against does in the same run; NaN where there is none.
	Baseline float64
	// Against says what the baseline is.
	Against string
	// Samples are how many values each of the two is the median of; 0 where it is a single fact.
	Samples int
	Target  Target
	Note    string
}

// None is the baseline of a figure that has none.
var None = math.NaN()

// Target is what a figure has to be. The zero Target asks for nothing.
type Target struct {
	Text string
	met  func(Row) bool
}

// RatioAtMost asks for ours to be at most r times the baseline.
func RatioAtMost(r float64) Target {
	return Target{fmt.Sprintf("<= %.2g x", r), func(row Row) bool { return row.Ratio() <= r }}
}

// RatioAtLeast asks for ours to be at least r times the baseline.
func RatioAtLeast(r float64) Target {
	return Target{fmt.Sprintf(">= %.2g x", r), func(row Row) bool { return row.Ratio() >= r }}
}

// AtMost asks for at most v in the row's unit.
func AtMost(v float64) Target {
	return Target{fmt.Sprintf("<= %g", v), func(row Row) bool { return row.Ours <= v }}
}

// AtLeast asks for at least v in the row's unit.
func AtLeast(v float64) Target {
	return Target{fmt.Sprintf(">= %g", v), func(row Row) bool { return row.Ours >= v }}
}

// Ratio is ours by the baseline; NaN without one.
func (r Row) Ratio() float64 { return r.Ours / r.Baseline }

// Met reports whether the target is met; asked is false where there is none. What could not be measured is not met.
func (r Row) Met() (met, asked bool) {
	if r.Target.met == nil {
		return false, false
	}
	return r.Target.met(r), true
}

// Section is the rows of one figure, or why it has none.
type Section struct {
	Name string
	Rows []Row
	Err  error
}

// Report is a whole run.
type Report struct {
	Before, After Machine
	// How says with which settings it ran.
	How      string
	Sections []Section
}

// Missed are the names of the rows whose target is not met, and of the sections that failed.
func (r Report) Missed() []string {
	var missed []string
	for _, s := range r.Sections {
		if s.Err != nil {
			missed = append(missed, s.Name)
		}
		for _, row := range s.Rows {
			if met, asked := row.Met(); asked && !met {
				missed = append(missed, row.Name)
			}
		}
	}
	return missed
}

// Markdown writes the table.
func (r Report) Markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Benchmarks\n\nMade by `make bench`, which measures each figure and its baseline in the same run, interleaved.\nValues are medians unless a row says otherwise.\n\n")
	fmt.Fprintf(&b, "- %s\n- %s\n- load: %s at the start, %s at the end\n- %s\n\n", r.Before.System(), r.Before.Versions(), r.Before.Load, r.After.Load, r.How)
	b.WriteString("| figure | unit | ours | baseline | what the baseline is | ratio | target | met | n |\n|---|---|--:|--:|---|--:|---|---|--:|\n")
	for _, s := range r.Sections {
		if s.Err != nil {
			fmt.Fprintf(&b, "| **%s failed**: %s | | | | | | | no | |\n", s.Name, cell(s.Err.Error()))
		}
		for _, row := range s.Rows {
			b.WriteString(row.markdown())
		}
	}
	notes := r.notes()
	if notes != "" {
		b.WriteString("\n## How it was measured\n\n" + notes)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r Row) markdown() string {
	met := ""
	if ok, asked := r.Met(); asked {
		met = map[bool]string{true: "yes", false: "**no**"}[ok]
	}
	ratio := ""
	if !math.IsNaN(r.Baseline) {
		ratio = fmt.Sprintf("%.2f", r.Ratio())
	}
	n := ""
	if r.Samples > 0 {
		n = fmt.Sprint(r.Samples)
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s | %s | %s |\n",
		cell(r.Name), r.Unit, Number(r.Ours), Number(r.Baseline), cell(r.Against), ratio, r.Target.Text, met, n)
}

func (r Report) notes() string {
	var b strings.Builder
	for _, s := range r.Sections {
		for _, row := range s.Rows {
			if row.Note != "" {
				fmt.Fprintf(&b, "- **%s**: %s\n", row.Name, row.Note)
			}
		}
	}
	return b.String()
}

func cell(s string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ").Replace(s)
}

// Number prints a value with three significant digits or more, thousands apart; nothing for NaN.
func Number(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return ""
	case v == math.Trunc(v) && a < 1000:
		return fmt.Sprintf("%.0f", v)
	case a < 10:
		return fmt.Sprintf("%.2f", v)
	case a < 1000:
		return fmt.Sprintf("%.1f", v)
	}
	digits := fmt.Sprintf("%.0f", v)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
