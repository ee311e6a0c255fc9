package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/metering"
	"github.com/sandtrail/sandtrail/libs/permission"
	usageapp "github.com/sandtrail/sandtrail/services/usage/app"
)

// UsageVerify is `sandtrail usage verify`.
type UsageVerify struct {
	Log
	Rows
	Tenant string        `placeholder:"ID" help:"Only a tenant's."`
	Wait   time.Duration `default:"30s" help:"How long the usage service may take to finish adding up, where something differs. Default: ${default}."`
	Limit  int           `default:"20" placeholder:"N" help:"Print at most this many differences; 0 is all. Default: ${default}."`
}

// Help is printed below the flags.
func (v *UsageVerify) Help() string {
	return "Reads the whole log, adds it up here, and compares each hour and each day with ClickHouse. Ends with 246 where anything differs."
}

// Run compares.
func (v *UsageVerify) Run(e *Env) error {
	address, err := v.address()
	if err != nil {
		return err
	}
	ctx, js, done, err := v.connect(e, permission.Operator)
	if err != nil {
		return err
	}
	defer done()
	progress := render.NewProgress(e.Stderr)
	r, err := usageapp.Verify(ctx, usageapp.Check{
		JS: js, Address: address, Tenant: v.Tenant, Patience: v.Wait,
		Progress: func(seq, of uint64) { progress.Count("events", seq, of) },
	})
	progress.Clear()
	if err != nil {
		return ended(ctx, err)
	}
	if err := v.print(e, r); err != nil {
		return err
	}
	if !r.Same() {
		return exitError(ExitDifferent)
	}
	return nil
}

// windowJSON is a difference as programs get it; quantities are texts, as those of `usage show`.
type windowJSON struct {
	Window   string `json:"window"`
	Start    string `json:"start"`
	Tenant   string `json:"tenant_id"`
	Sandbox  string `json:"sandbox_id"`
	Session  string `json:"session_id"`
	Meter    string `json:"meter"`
	Log      string `json:"log"`
	Database string `json:"clickhouse"`
}

func differing(r usageapp.Verification, limit int) []windowJSON {
	all := []windowJSON{}
	add := func(window string, ds []metering.Difference) {
		for _, d := range ds {
			if limit > 0 && len(all) == limit {
				return
			}
			all = append(all, windowJSON{
				window, time.UnixMilli(d.Hour).UTC().Format(time.RFC3339), d.Tenant, d.Sandbox, d.Session, string(d.Meter),
				strconv.FormatUint(d.Want, 10), strconv.FormatUint(d.Have, 10),
			})
		}
	}
	add("hour", r.HourDifferences)
	add("day", r.DayDifferences)
	return all
}

func (v *UsageVerify) print(e *Env, r usageapp.Verification) error {
	list := differing(r, v.Limit)
	if v.json() {
		return render.Value(e.Stdout, struct {
			Sequence    uint64       `json:"sequence"`
			AsOf        time.Time    `json:"as_of"`
			Events      int          `json:"events"`
			Unusable    int          `json:"unusable_events"`
			Hours       int          `json:"hours"`
			Days        int          `json:"days"`
			Different   int          `json:"different"`
			Differences []windowJSON `json:"differences"`
		}{r.Mark.Seq, r.Mark.At.UTC(), r.Events, r.Unusable, r.Hours, r.Days, len(r.HourDifferences) + len(r.DayDifferences), list})
	}
	if err := render.Fields(e.Stdout, []render.Field{
		{Name: "Compared up to", Value: fmt.Sprintf("sequence %d, %s", r.Mark.Seq, clock(r.Mark.At))},
		{Name: "Events", Value: strconv.Itoa(r.Events)},
		{Name: "Dead letters", Value: fmt.Sprintf("%d events that cannot be billed", r.Unusable)},
		{Name: "Hours", Value: fmt.Sprintf("%d quantities, %d different", r.Hours, len(r.HourDifferences))},
		{Name: "Days", Value: fmt.Sprintf("%d quantities, %d different", r.Days, len(r.DayDifferences))},
	}); err != nil || len(list) == 0 {
		return err
	}
	t := render.Table{Header: []string{"WINDOW", "START", "TENANT", "SANDBOX", "SESSION", "METER", "LOG", "CLICKHOUSE"}}
	for _, d := range list {
		t.Rows = append(t.Rows, []string{d.Window, d.Start, d.Tenant, d.Sandbox, d.Session, d.Meter, d.Log, d.Database})
	}
	return t.Write(e.Stdout)
}

// UsageExplain is `sandtrail usage explain`.
type UsageExplain struct {
	Log
	Rows
	ID     string `arg:"" help:"Of a usage row, an exec, an event or a sandbox."`
	Tenant string `placeholder:"ID" help:"Only where it is this tenant's."`
}

// Run shows which events lead to what, and how.
func (x *UsageExplain) Run(e *Env) error {
	id, err := sandboxID(x.ID)
	if err != nil {
		return usagef("%q is not an id", x.ID)
	}
	address, err := x.address()
	if err != nil {
		return err
	}
	ctx, js, done, err := x.connect(e, permission.Operator)
	if err != nil {
		return err
	}
	defer done()
	r, err := usageapp.Explain(ctx, js, address, x.Tenant, id)
	if err != nil {
		return ended(ctx, err)
	}
	facts, spans := told(r)
	if x.json() {
		return render.Value(e.Stdout, explanationJSON{r.Tenant, r.Sandbox, r.Exec, facts, spans})
	}
	if err := render.Fields(e.Stdout, []render.Field{
		{Name: "Tenant", Value: r.Tenant}, {Name: "Sandbox", Value: r.Sandbox}, {Name: "Exec", Value: r.Exec}, {Name: "Session", Value: r.Owner.Session},
	}); err != nil {
		return err
	}
	events := render.Table{Header: []string{"SEQUENCE", "TIME", "EVENT", "UP OR WALL", "CPU", "MEMORY AVG", "EVENT ID"}}
	for _, f := range facts {
		events.Rows = append(events.Rows, []string{
			strconv.FormatUint(f.Sequence, 10), f.Time, f.Type, fmt.Sprintf("%d ms", f.Millis), fmt.Sprintf("%d ms", f.CPUMillis), fmt.Sprintf("%d B", f.MemoryAvg), f.EventID,
		})
	}
	made := render.Table{Header: []string{"BY SEQUENCE", "FROM", "TO", "METER", "QUANTITY", "UNIT", "HOW"}}
	for _, s := range spans {
		made.Rows = append(made.Rows, []string{strconv.FormatUint(s.Sequence, 10), s.From, s.To, s.Meter, s.Quantity, s.Unit, s.How})
	}
	fmt.Fprintln(e.Stdout)
	if err := events.Write(e.Stdout); err != nil {
		return err
	}
	fmt.Fprintln(e.Stdout)
	return made.Write(e.Stdout)
}

type explanationJSON struct {
	Tenant  string     `json:"tenant_id"`
	Sandbox string     `json:"sandbox_id"`
	Exec    string     `json:"exec_id"`
	Facts   []factJSON `json:"events"`
	Spans   []spanJSON `json:"spans"`
}

type factJSON struct {
	Sequence  uint64 `json:"sequence"`
	EventID   string `json:"event_id"`
	Type      string `json:"type"`
	Time      string `json:"time"`
	Millis    uint64 `json:"ms"`
	CPUMillis uint64 `json:"cpu_ms"`
	MemoryAvg uint64 `json:"memory_avg_bytes"`
}

type spanJSON struct {
	Sequence uint64 `json:"sequence"`
	From     string `json:"from"`
	To       string `json:"to"`
	Meter    string `json:"meter"`
	Quantity string `json:"quantity"`
	Unit     string `json:"unit"`
	How      string `json:"how"`
}

func told(r usageapp.Explanation) ([]factJSON, []spanJSON) {
	facts, spans := make([]factJSON, 0, len(r.Facts)), []spanJSON{}
	for _, f := range r.Facts {
		facts = append(facts, factJSON{
			f.Seq, f.EventID, f.Type[strings.LastIndexByte(f.Type, '.')+1:], f.Time.UTC().Format(time.RFC3339Nano), f.Millis, f.CPUMillis, f.MemoryAvg,
		})
	}
	at := func(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z") }
	for _, s := range r.Spans {
		for _, p := range s.Parts {
			spans = append(spans, spanJSON{
				s.Seq, at(s.From), at(s.To), string(p.Meter), strconv.FormatUint(s.Whole(p), 10), p.Meter.Unit(), how(p.Meter, r.Owner, s.To-s.From),
			})
		}
	}
	return facts, spans
}

// how says where a span's quantity comes from.
func how(m metering.Meter, o metering.Owner, ms int64) string {
	switch m {
	case metering.SandboxUptime:
		return "uptime less that of the event before"
	case metering.SandboxCPUAllocated:
		return fmt.Sprintf("%d thousandths of a core x %d ms", o.CPUMillis, ms)
	case metering.SandboxMemoryAllocated:
		return fmt.Sprintf("%d B x %d ms / 1048576", o.MemoryBytes, ms)
	case metering.WorkspaceStorage:
		return fmt.Sprintf("%d B x %d ms / 1048576", o.WorkspaceBytes, ms)
	case metering.SandboxCPUUsed:
		return "(CPU less that of the event before) x 1000"
	case metering.SandboxMemoryUsed:
		return "mean x uptime / 1048576, less that of the event before"
	case metering.ExecCPU:
		return "CPU x 1000"
	case metering.ExecMemory:
		return "mean x wall time / 1048576"
	case metering.Execs, metering.ExecWall, metering.OutputKept:
		return "as the event says"
	default:
		if strings.HasPrefix(string(m), "sandbox_") {
			return "counter less that of the event before"
		}
		return "as the event says"
	}
}
