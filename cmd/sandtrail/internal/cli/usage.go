package cli

import (
	"strconv"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/ids"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// Usage is `sandtrail usage`.
type Usage struct {
	Ls      UsageLs      `cmd:"" help:"List usage rows, newest first."`
	Show    UsageShow    `cmd:"" help:"Show what was used, by hour, day, month, tenant, session or sandbox."`
	Top     UsageTop     `cmd:"" help:"Show who used most."`
	Explain UsageExplain `cmd:"" help:"Show which events lead to a row, and by which arithmetic."`
	Verify  UsageVerify  `cmd:"" help:"Add the log up and compare with ClickHouse, to the last unit."`
	Invoice UsageInvoice `cmd:"" help:"Show the invoice lines of a month."`
	Price   UsagePrice   `cmd:"" help:"List, add and import prices."`
	Rebuild UsageRebuild `cmd:"" help:"Make all rows from the log beside those that stand, compare, and swap."`
}

// UsageLs is `sandtrail usage ls`.
type UsageLs struct {
	Server
	Session string        `placeholder:"ID" help:"Only those of a session."`
	Sandbox string        `placeholder:"ID" help:"Only those of a sandbox."`
	Exec    string        `placeholder:"ID" help:"Only that of an exec."`
	Limit   int           `default:"50" placeholder:"N" help:"At most this many; 0 is all. Default: ${default}."`
	Timeout time.Duration `default:"1m" help:"Give up after this long."`
}

// Run lists usage rows.
func (u *UsageLs) Run(e *Env) error {
	if u.Limit < 0 {
		return usagef("--limit: %d is negative", u.Limit)
	}
	for flag, id := range map[string]string{"--sandbox": u.Sandbox, "--exec": u.Exec} {
		if id != "" && !ids.Valid(strings.ToLower(id)) {
			return usagef("%s: %q is not an id", flag, id)
		}
	}
	ctx, api, done, err := u.connect(e, u.Timeout)
	if err != nil {
		return err
	}
	defer done()
	rows, err := api.Usage(ctx, &computev1.ListUsageRequest{
		TenantId: u.Tenant, SessionId: u.Session, SandboxId: strings.ToLower(u.Sandbox), ExecId: strings.ToLower(u.Exec),
	}, u.Limit)
	if err != nil {
		return ended(ctx, err)
	}
	if u.json() {
		return render.Many(e.Stdout, rows)
	}
	t := render.Table{Header: []string{"ID", "TYPE", "TIME", "SANDBOX", "EXEC", "WALL", "CPU", "MEMORY", "EXIT", "REASON"}}
	for _, r := range rows {
		exit := ""
		if r.ExitCode != nil {
			exit = strconv.Itoa(int(r.GetExitCode()))
		}
		t.Rows = append(t.Rows, []string{
			r.GetId(), r.GetEventType(), render.Time(r.GetOccurredAt()), ids.Short(r.GetSandboxId()), ids.Short(r.GetExecId()),
			strconv.FormatUint(r.GetWallTimeMs(), 10) + " ms", strconv.FormatUint(r.GetUsage().GetCpuMs(), 10) + " ms",
			render.Bytes(r.GetUsage().GetMemoryPeakBytes()), exit, r.GetReason(),
		})
	}
	return t.Write(e.Stdout)
}
