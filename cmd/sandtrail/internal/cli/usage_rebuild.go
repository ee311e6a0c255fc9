package cli

import (
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/permission"
	usageapp "github.com/sandtrail/sandtrail/services/usage/app"
)

// UsageRebuild is `sandtrail usage rebuild`.
type UsageRebuild struct {
	Log
	Rows
	Swap    bool          `xor:"swap" help:"Put what was made in the place of what stands although the two differ."`
	Compare bool          `xor:"swap" help:"Only compare: leave what stands, also where nothing differs."`
	Cluster string        `name:"clickhouse-cluster" placeholder:"NAME" group:"The rows" help:"The cluster of replicas that the server belongs to, as the usage service is told."`
	Afresh  bool          `help:"Begin anew, whatever an earlier rebuild has read."`
	Keep    bool          `help:"After a swap, leave what stood before in the database agents_rebuild."`
	Rate    int           `placeholder:"N" help:"Read at most this many events a second; unless set, as many as there are."`
	Wait    time.Duration `default:"30s" help:"How long the usage service may take to finish adding up, where something differs. Default: ${default}."`
	Limit   int           `default:"20" placeholder:"N" help:"Print at most this many differences of each kind. Default: ${default}."`
}

// Help is printed below the flags.
func (r *UsageRebuild) Help() string {
	return "Reads the whole log into tables of its own, adds hours and days up, and compares row by row with what stands. Where nothing differs, or with --swap, " +
		"the new tables take the place of the others. The usage service may go on meanwhile. A rebuild that was stopped goes on where it was. " +
		"Ends with 246 where something differs and was not swapped. --clickhouse must name a user who may make tables; the built-in server's is in a file: --clickhouse @STATE/clickhouse/address."
}

// maxDifferences bounds what is printed of each kind.
const maxDifferences = 10_000

// Run rebuilds.
func (r *UsageRebuild) Run(e *Env) error {
	switch {
	case r.Rate < 0:
		return usagef("--rate: %d is negative", r.Rate)
	case r.Limit < 0 || r.Limit > maxDifferences:
		return usagef("--limit: %d is not 0 to %d", r.Limit, maxDifferences)
	}
	address, err := r.address()
	if err != nil {
		return err
	}
	ctx, js, done, err := r.connect(e, permission.Operator)
	if err != nil {
		return err
	}
	defer done()
	progress := render.NewProgress(e.Stderr)
	b, err := usageapp.Rebuild{
		JS: js, Log: slog.New(slog.DiscardHandler), Address: address, Cluster: r.Cluster, Swap: r.Swap, Compare: r.Compare, Afresh: r.Afresh, Keep: r.Keep,
		Rate: r.Rate, Limit: r.Limit, Patience: r.Wait,
		Progress: func(step string, done, of uint64) {
			if of == 0 {
				progress.Step(step)
				return
			}
			progress.Events(step, done, of)
		},
	}.Run(ctx)
	progress.Clear()
	if err != nil {
		return ended(ctx, err)
	}
	if err := r.print(e, b); err != nil {
		return err
	}
	if !b.Same() && !b.Swapped {
		return exitError(ExitDifferent)
	}
	return nil
}

type rebuiltJSON struct {
	Sequence  uint64     `json:"sequence"`
	AsOf      time.Time  `json:"as_of"`
	Events    int        `json:"events"`
	Unusable  int        `json:"unusable_events"`
	Resumed   uint64     `json:"resumed_behind"`
	Stand     uint64     `json:"rows"`
	Made      uint64     `json:"rows_made"`
	Missing   uint64     `json:"missing"`
	Changed   uint64     `json:"changed"`
	Foreign   uint64     `json:"foreign"`
	Beyond    int        `json:"beyond_the_log"`
	Hours     uint64     `json:"hours_different"`
	Days      uint64     `json:"days_different"`
	Swapped   bool       `json:"swapped"`
	Finished  bool       `json:"finished_earlier_swap"`
	Rows      []factDiff `json:"first_rows"`
	Totals    []dayDiff  `json:"first_totals"`
	HourDiffs []hourDiff `json:"first_hours"`
}

// factDiff, dayDiff and hourDiff are differences; quantities are texts, as those of `usage show`.
type factDiff struct {
	Tenant  string `json:"tenant_id"`
	Sandbox string `json:"sandbox_id"`
	ID      string `json:"id"`
	Stands  string `json:"clickhouse"`
	Made    string `json:"log"`
}

type dayDiff struct {
	Day    string `json:"day"`
	Tenant string `json:"tenant_id"`
	Meter  string `json:"meter"`
	Made   string `json:"log"`
	Stands string `json:"clickhouse"`
}

type hourDiff struct {
	Start   string `json:"start"`
	Tenant  string `json:"tenant_id"`
	Sandbox string `json:"sandbox_id"`
	Session string `json:"session_id"`
	Meter   string `json:"meter"`
	Made    string `json:"log"`
	Stands  string `json:"clickhouse"`
}

func rebuilt(b usageapp.Rebuilt) rebuiltJSON {
	d := b.Differences
	out := rebuiltJSON{
		Sequence: b.Mark.Seq, AsOf: b.Mark.At.UTC(), Events: b.Events, Unusable: b.Unusable, Resumed: b.Resumed, Stand: d.Stand, Made: d.Made,
		Missing: d.Missing, Changed: d.Changed, Foreign: d.Foreign, Beyond: b.Beyond, Hours: d.Hours, Days: d.Days, Swapped: b.Swapped, Finished: b.Finished,
		Rows: []factDiff{}, Totals: []dayDiff{}, HourDiffs: []hourDiff{},
	}
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	for _, f := range d.First {
		out.Rows = append(out.Rows, factDiff{f.Tenant, f.Sandbox.String(), f.ID.String(), factText(f.Stands), factText(f.Made)})
	}
	for _, w := range d.Windows {
		out.Totals = append(out.Totals, dayDiff{w.Day.Format(time.DateOnly), w.Tenant, string(w.Meter), number(w.Made), number(w.Stands)})
	}
	for _, h := range d.FirstHours {
		out.HourDiffs = append(out.HourDiffs, hourDiff{
			time.UnixMilli(h.Hour).UTC().Format(time.RFC3339), h.Tenant, h.Sandbox, h.Session, string(h.Meter), number(h.Want), number(h.Have),
		})
	}
	return out
}

// factText is a row in a few words; empty of none.
func factText(f *usageapp.FactRow) string {
	if f == nil {
		return ""
	}
	return fmt.Sprintf("%s %s, event %d, %d ms, %d ms CPU", f.Type, f.Outcome, f.Seq, f.WallMillis, f.CPUMillis)
}

func (r *UsageRebuild) print(e *Env, b usageapp.Rebuilt) error {
	out := rebuilt(b)
	if r.json() {
		return render.Value(e.Stdout, out)
	}
	what := "nothing; what was made stands in agents_rebuild until the next rebuild"
	switch {
	case b.Finished:
		what = "finished a swap that had begun before"
	case b.Swapped:
		what = "swapped: what was made from the log stands now"
	}
	if err := render.Fields(e.Stdout, []render.Field{
		{Name: "Compared up to", Value: fmt.Sprintf("sequence %d, %s", b.Mark.Seq, clock(b.Mark.At))},
		{Name: "Events", Value: fmt.Sprintf("%d, behind sequence %d of an earlier rebuild", b.Events, b.Resumed)},
		{Name: "Dead letters", Value: fmt.Sprintf("%d events that make no row", b.Unusable)},
		{Name: "Rows", Value: fmt.Sprintf("%d stand, %d made: %d missing, %d changed, %d foreign, %d beyond the log", out.Stand, out.Made, out.Missing, out.Changed, out.Foreign, out.Beyond)},
		{Name: "Hours", Value: fmt.Sprintf("%d different", out.Hours)},
		{Name: "Days", Value: fmt.Sprintf("%d different", out.Days)},
		{Name: "Done", Value: what},
	}); err != nil {
		return err
	}
	facts := render.Table{Header: []string{"TENANT", "SANDBOX", "ROW", "LOG", "CLICKHOUSE"}}
	for _, f := range out.Rows {
		facts.Rows = append(facts.Rows, []string{f.Tenant, f.Sandbox, f.ID, f.Made, f.Stands})
	}
	totals := render.Table{Header: []string{"DAY", "TENANT", "METER", "LOG", "CLICKHOUSE"}}
	for _, t := range out.Totals {
		totals.Rows = append(totals.Rows, []string{t.Day, t.Tenant, t.Meter, t.Made, t.Stands})
	}
	hours := render.Table{Header: []string{"HOUR", "TENANT", "SANDBOX", "SESSION", "METER", "LOG", "CLICKHOUSE"}}
	for _, h := range out.HourDiffs {
		hours.Rows = append(hours.Rows, []string{h.Start, h.Tenant, h.Sandbox, h.Session, h.Meter, h.Made, h.Stands})
	}
	for _, t := range []render.Table{facts, totals, hours} {
		if len(t.Rows) == 0 {
			continue
		}
		fmt.Fprintln(e.Stdout)
		if err := t.Write(e.Stdout); err != nil {
			return err
		}
	}
	return nil
}
