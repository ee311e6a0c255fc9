package cli

import (
	"fmt"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/audit"
	"github.com/sandtrail/sandtrail/libs/permission"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// AuditExport is `sandtrail audit export`.
type AuditExport struct {
	AuditLog
	Dir string `arg:"" type:"path" help:"Directory to write to; made when absent. One that holds an export of the same log is continued."`
	To  uint64 `placeholder:"SEQ" help:"Last sequence to export. Default: the last one there is. An interrupted export first goes to where it was to go."`
}

// Run exports what is not there yet.
func (a *AuditExport) Run(e *Env) error {
	ctx, log, done, err := a.open(e)
	if err != nil {
		return err
	}
	defer done()
	if a.To > log.LastSeq {
		return usagef("--to: the log ends at %d", log.LastSeq)
	}
	to := a.To
	if to == 0 {
		to = log.LastSeq
	}
	p := render.NewProgress(e.Stderr)
	x := audit.Export{Dir: a.Dir, LogID: log.ID, To: to, Progress: func(seq, to uint64) { p.Events("export", seq, to) }}
	r, err := x.Run(ctx, log.Open)
	p.Clear()
	if err != nil {
		return ended(ctx, err)
	}
	if a.Output == "json" {
		return render.Value(e.Stdout, r)
	}
	return render.Fields(e.Stdout, []render.Field{
		{Name: "Log", Value: log.ID},
		{Name: "Events", Value: fmt.Sprintf("to sequence %d, %d of them now", r.LastSeq, r.Added)},
		{Name: "Segments", Value: fmt.Sprintf("%d, %s", r.Segments, render.Bytes(uint64(r.Bytes)))}, //nolint:gosec // a size
		{Name: "Digest", Value: r.Digest},
	})
}

// AuditImport is `sandtrail audit import`.
type AuditImport struct {
	AuditLog
	Trusted
	Dir            string `arg:"" type:"path" help:"Directory of an export."`
	EventsMaxBytes int64  `placeholder:"BYTES" help:"Bound of the log there, if it is not the usual one."`
}

// Help is printed below the flags.
func (a *AuditImport) Help() string {
	return "The server must hold nothing; start one for this alone, and no services on it: they would act on what they find. The export is checked first, and one that is not whole is refused."
}

// Run checks the export and imports it.
func (a *AuditImport) Run(e *Env) error {
	if a.EventsMaxBytes < 0 {
		return usagef("a bound is not negative")
	}
	keys, err := a.keys()
	if err != nil {
		return err
	}
	ctx, js, done, err := a.connect(e, permission.Provisioner)
	if err != nil {
		return err
	}
	defer done()
	r, err := verifyExport(ctx, e, a.Dir, "", audit.Options{Keys: keys})
	if err != nil {
		return ended(ctx, err)
	}
	if !r.OK() {
		return (&AuditVerify{AuditLog: a.AuditLog}).tell(e, r)
	}
	s, err := audit.OpenExport(a.Dir, 1, nil)
	if err != nil {
		return err
	}
	p := render.NewProgress(e.Stderr)
	in := audit.Import{
		JS: js, Options: topology.Options{EventsMaxBytes: a.EventsMaxBytes}, Progress: func(seq uint64) { p.Events("import", seq, r.LastSeq) },
	}
	n, err := in.Run(ctx, s)
	p.Clear()
	if err != nil {
		return ended(ctx, err)
	}
	if a.Output == "json" {
		return render.Value(e.Stdout, struct {
			LogID  string `json:"log_id"`
			Events uint64 `json:"events"`
		}{s.LogID(), n})
	}
	return render.Fields(e.Stdout, []render.Field{{Name: "Log", Value: s.LogID()}, {Name: "Events", Value: number(n)}})
}
