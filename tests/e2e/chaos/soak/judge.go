package soak

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/gonum/stat"
)

// Kind of a verdict.
type Kind string

// Kinds.
const (
	// Flat: it does not grow more than its slack.
	Flat Kind = "flat"
	// Growing: it grows with what its rule names, and costs no more of it than that rule allows.
	Growing Kind = "growing"
	// Leaking: it grows, and nothing explains it.
	Leaking Kind = "leaking"
	// Shown: it is a figure for people and not judged.
	Shown Kind = "shown"
	// Short: there is too little of it.
	Short Kind = "short"
)

// Verdict on one line. First and Last are of the judged half: medians of its beginning and its end.
type Verdict struct {
	Line        string  `json:"line"`
	Kind        Kind    `json:"kind"`
	First, Last float64 `json:"-"`
	// Slope is what it grows by in an hour.
	Slope float64 `json:"slope_per_hour"`
	// Cost is what it grows by for each one that By does; of lines that grow.
	By   string  `json:"by,omitempty"`
	Cost float64 `json:"cost,omitempty"`
	Why  string  `json:"why,omitempty"`
}

// rule says what a line may do: the first whose pattern fits counts.
type rule struct {
	pattern string
	// slack and part are how much it may grow within the judged half and still be flat: the greater of an amount and a part of its median.
	slack, part float64
	// by is the line that it grows with, and most what each one of it may cost.
	by   string
	most float64
	why  string
	// shown lines are not judged.
	shown bool
}

const (
	kib = 1 << 10
	mib = 1 << 20
)

// rules for every line. What is kept for ever grows with what was done, and each such line has a bound for what one costs.
var rules = []rule{
	{pattern: "load.*", shown: true},
	{pattern: "*.pid", shown: true},
	{pattern: "*.cpu_share", shown: true, why: "it follows the load and what else runs on the machine"},

	{pattern: "store.EVT.messages", by: "load.execs", most: 20, why: "the log keeps every event"},
	{pattern: "store.EVT.disk_bytes", by: "store.EVT.messages", most: 1500, why: "the log keeps every event"},
	{pattern: "store.OUT.messages", by: "load.execs", most: 200, why: "output is kept for 7 days"},
	{pattern: "store.OUT.disk_bytes", by: "load.bytes", most: 3, why: "output is kept for 7 days; readers read some of it again, and some is never read"},
	{pattern: "store.KV_exec.messages", by: "load.execs", most: 1.5, why: "one receipt for each exec"},
	{pattern: "store.KV_exec.disk_bytes", by: "load.execs", most: 6 * kib, why: "one receipt for each exec, and what it replaced until the server compacts"},
	{pattern: "store.KV_idem.messages", by: "load.execs", most: 2.5, why: "idempotency keys are kept for a day"},
	{pattern: "store.KV_idem.disk_bytes", by: "load.execs", most: 3 * kib, why: "idempotency keys are kept for a day"},
	{pattern: "store.KV_sandbox.messages", by: "load.creates", most: 2.5, why: "views of sandboxes that have ended are kept"},
	{pattern: "store.KV_sandbox.disk_bytes", by: "load.creates", most: 16 * kib, why: "views of sandboxes that have ended are kept"},
	{pattern: "store.subjects", by: "load.execs", most: 10, why: "one for each aggregate, output, receipt and key"},
	{pattern: "store.*.disk_bytes", slack: 4 * mib, part: 0.3},
	{pattern: "store.*.messages", slack: 20, part: 0.1},

	{pattern: "nats*.*_bytes", slack: 8 * mib, part: 0.1, by: "store.subjects", most: 2 * kib, why: "the server keeps every subject in memory"},
	{pattern: "nats.*", shown: true},

	{pattern: "tables.rows", by: "load.execs", most: 3, why: "each exec and each piece of a sandbox's time is a row"},
	{pattern: "tables.disk_bytes", slack: 1 * mib, by: "tables.rows", most: 600, why: "each exec and each piece of a sandbox's time is a row"},
	{pattern: "tables.parts", slack: 20, part: 0.5},
	{pattern: "clickhouse.*_bytes", slack: 48 * mib, part: 0.1},
	{pattern: "clickhouse.*", slack: 20, part: 0.1},

	{pattern: "files.nats.*", shown: true, why: "its streams are lines of their own"},
	{pattern: "files.clickhouse.*", slack: 500, part: 0.3, shown: true, why: "its tables are lines of their own; merges write and remove files"},
	{pattern: "files.workspaces.count", by: "load.creates", most: 2, why: "workspaces are kept until their delete-after"},
	{pattern: "files.workspaces.disk_bytes", by: "load.creates", most: 8 * mib, why: "workspaces are kept until their delete-after"},
	{pattern: "files.*.disk_bytes", slack: 8 * mib, part: 0.2},
	{pattern: "files.*.count", slack: 20, part: 0.2},

	{pattern: "lag.*", slack: 20, part: 0.5},
	{pattern: "*.lag_events", slack: 20, part: 0.5},
	{pattern: "*.pending_events", slack: 200, part: 0.5},
	{pattern: "host.*", slack: 6, part: 0.3},
	{pattern: "keepers.*_bytes", slack: 24 * mib, part: 0.3},
	{pattern: "sentries.*_bytes", slack: 96 * mib, part: 0.3},
	{pattern: "keepers.*", slack: 40, part: 0.3},
	{pattern: "sentries.*", slack: 40, part: 0.3},
	// What is remembered has a bound, which an hour does not reach.
	{pattern: "exec.heap_bytes", slack: 2 * mib, by: "load.execs", most: 2 * kib, why: "owners, ready sandboxes and receipts are remembered, at most 4,096 of each"},
	{pattern: "lifecycle.heap_bytes", slack: 2 * mib, by: "load.creates", most: 16 * kib, why: "states of sandboxes are remembered, at most 4,096"},
	{pattern: "*.heap_bytes", slack: 2 * mib, part: 0.1},
	{pattern: "*_bytes", slack: 4 * mib, part: 0.1},
	{pattern: "*.threads", slack: 4, part: 0.1},
	{pattern: "*", slack: 8, part: 0.1},
}

func ruleOf(line string) rule {
	for _, r := range rules {
		if fits, _ := path.Match(r.pattern, line); fits {
			return r
		}
	}
	return rule{pattern: "*"}
}

const (
	// least is how many looks a judgement needs.
	least = 8
	// rising is the rank correlation with time from which on a line counts as one that grows: below it noise has as many ways down.
	rising = 0.25
)

// Judge judges every line by its second half: the first one warms up.
func Judge(rows []Row) []Verdict {
	half := rows[len(rows)/2:]
	var all []Verdict
	for _, name := range Lines(rows) {
		all = append(all, judgeLine(name, ruleOf(name), half))
	}
	return all
}

// series are the moments and figures of a line. Of a process only since its last start.
type series struct{ hours, values, driver []float64 }

func take(line, by string, rows []Row) series {
	from := 0
	if process, _, ok := strings.Cut(line, "."); ok {
		for i := 1; i < len(rows); i++ {
			if rows[i].Figures[process+".pid"] != rows[i-1].Figures[process+".pid"] {
				from = i
			}
		}
	}
	var s series
	for _, r := range rows[from:] {
		v, ok := r.Figures[line]
		d, driven := r.Figures[by]
		if !ok || by != "" && !driven {
			continue
		}
		s.hours = append(s.hours, r.At.Sub(rows[0].At).Hours())
		s.values, s.driver = append(s.values, v), append(s.driver, d)
	}
	return s
}

func judgeLine(line string, r rule, rows []Row) Verdict {
	s := take(line, r.by, rows)
	v := Verdict{Line: line, Kind: Shown, Why: r.why}
	if len(s.values) < least {
		v.Kind = Short
		return v
	}
	edge := max(1, len(s.values)/8)
	v.First, v.Last = median(s.values[:edge]), median(s.values[len(s.values)-edge:])
	v.Slope = theilSen(s.hours, s.values)
	if r.shown {
		return v
	}
	grown := v.Slope * (s.hours[len(s.hours)-1] - s.hours[0])
	if grown <= max(r.slack, r.part*math.Abs(median(s.values))) && r.by == "" || grown <= r.slack || stat.Kendall(s.hours, s.values, nil) < rising {
		v.Kind, v.Why = Flat, ""
		return v
	}
	v.Kind, v.Why = Leaking, "nothing explains it"
	if r.by == "" {
		return v
	}
	v.By, v.Cost = r.by, theilSen(s.driver, s.values)
	if v.Cost > r.most || v.Cost <= 0 {
		v.Why = fmt.Sprintf("%s, but at most %.4g each", r.why, r.most)
		return v
	}
	v.Kind, v.Why = Growing, r.why
	return v
}

// theilSen is the median of the slopes between all pairs: what a few outliers do not move.
func theilSen(x, y []float64) float64 {
	var slopes []float64
	for i := range x {
		for j := i + 1; j < len(x); j++ {
			if dx := x[j] - x[i]; dx != 0 {
				slopes = append(slopes, (y[j]-y[i])/dx)
			}
		}
	}
	return median(slopes)
}

func median(of []float64) float64 {
	if len(of) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(of))
	if n := len(sorted); n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[len(sorted)/2]
}

// Leaks are the verdicts that are leaks, the steepest for their size first.
func Leaks(all []Verdict) []Verdict {
	leaks := slices.DeleteFunc(slices.Clone(all), func(v Verdict) bool { return v.Kind != Leaking })
	slices.SortStableFunc(leaks, func(a, b Verdict) int {
		return cmp.Compare(b.Slope/math.Max(1, b.First), a.Slope/math.Max(1, a.First))
	})
	return leaks
}

// span is how long rows cover.
func span(rows []Row) time.Duration {
	if len(rows) == 0 {
		return 0
	}
	return rows[len(rows)-1].At.Sub(rows[0].At)
}
