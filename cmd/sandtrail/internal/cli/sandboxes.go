package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/client"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

const (
	statusPrefix = "SANDBOX_STATUS_"
	// parallelRemovals is how many sandboxes rm ends at once.
	parallelRemovals = 4
)

// live are the statuses of what runs or may yet; unspecified is a sandbox on its way out.
var live = []computev1.SandboxStatus{
	computev1.SandboxStatus_SANDBOX_STATUS_STARTING, computev1.SandboxStatus_SANDBOX_STATUS_READY, computev1.SandboxStatus_SANDBOX_STATUS_UNSPECIFIED,
}

// Ls is `sandtrail ls`.
type Ls struct {
	Server
	All     bool          `short:"a" xor:"which" help:"Also what has failed or is gone."`
	Status  []string      `xor:"which" enum:"starting,ready,failed,destroyed" placeholder:"STATUS" help:"Only these: ${enum}."`
	Session string        `placeholder:"ID" help:"Only those of a session."`
	Limit   int           `placeholder:"N" help:"At most this many. Default: all."`
	Timeout time.Duration `default:"1m" help:"Give up after this long."`
}

// Run lists sandboxes.
func (l *Ls) Run(e *Env) error {
	if l.Limit < 0 {
		return usagef("--limit: %d is negative", l.Limit)
	}
	req := &computev1.ListSandboxesRequest{TenantId: l.Tenant, SessionId: l.Session}
	if !l.All {
		req.Statuses = live
	}
	if len(l.Status) > 0 {
		req.Statuses = nil
		for _, s := range l.Status {
			req.Statuses = append(req.Statuses, computev1.SandboxStatus(computev1.SandboxStatus_value[statusPrefix+strings.ToUpper(s)]))
		}
	}
	ctx, api, done, err := l.connect(e, l.Timeout)
	if err != nil {
		return err
	}
	defer done()
	all, err := api.Sandboxes(ctx, req, l.Limit)
	if err != nil {
		return ended(ctx, err)
	}
	if l.json() {
		return render.Many(e.Stdout, all)
	}
	t := render.Table{Header: []string{"ID", "STATE", "AGE", "TENANT", "SESSION", "IMAGE"}}
	if render.Colour(e.Stdout) {
		t.Paint = paintState
	}
	for _, b := range all {
		d := b.GetDetail()
		t.Rows = append(t.Rows, []string{
			b.GetSandboxId(), state(b), render.Duration(time.Since(b.GetCreatedAt().AsTime())), d.GetTenantId(), d.GetSessionId(), d.GetImage(),
		})
	}
	return t.Write(e.Stdout)
}

// state is the exact state, or the status of servers that do not tell it.
func state(b *computev1.DescribeSandboxResponse) string {
	if s := b.GetDetail().GetState(); s != "" {
		return s
	}
	return render.Enum(statusPrefix, b.GetStatus().String())
}

func paintState(column int, cell string) string {
	if column != 1 {
		return ""
	}
	switch cell {
	case "ready":
		return "32"
	case "failed":
		return "31"
	case "destroyed":
		return "2"
	default:
		return "33"
	}
}

// Describe is `sandtrail describe`.
type Describe struct {
	Server
	Sandbox string        `arg:"" help:"Its id."`
	Timeout time.Duration `default:"1m" help:"Give up after this long."`
}

// Run shows one sandbox.
func (d *Describe) Run(e *Env) error {
	id, err := sandboxID(d.Sandbox)
	if err != nil {
		return err
	}
	ctx, api, done, err := d.connect(e, d.Timeout)
	if err != nil {
		return err
	}
	defer done()
	b, err := client.Retry(ctx, api, func(ctx context.Context) (*computev1.DescribeSandboxResponse, error) {
		return api.DescribeSandbox(ctx, &computev1.DescribeSandboxRequest{SandboxId: id})
	})
	if err != nil {
		return ended(ctx, err)
	}
	if d.json() {
		return render.One(e.Stdout, b)
	}
	return render.Fields(e.Stdout, fields(b))
}

func fields(b *computev1.DescribeSandboxResponse) []render.Field {
	d := b.GetDetail()
	f := []render.Field{
		{Name: "Sandbox", Value: b.GetSandboxId()},
		{Name: "State", Value: state(b)},
		{Name: "Reason", Value: reason(d.GetReason(), d.GetReasonCode())},
		{Name: "Tenant", Value: d.GetTenantId()},
		{Name: "Session", Value: d.GetSessionId()},
		{Name: "Image", Value: d.GetImage()},
		{Name: "Image digest", Value: d.GetImageDigest()},
		{Name: "Worker", Value: d.GetWorker()},
		{Name: "Hostname", Value: d.GetHostname()},
		{Name: "Labels", Value: sortedPairs(d.GetLabels())},
		{Name: "Env", Value: strings.Join(d.GetEnvKeys(), ", ")},
		{Name: "Limits", Value: limits(d.GetLimits())},
		{Name: "Workspace", Value: strings.TrimSpace(d.GetWorkspace().GetSize() + " " + d.GetWorkspace().GetMountPath())},
		{Name: "Created", Value: render.Time(b.GetCreatedAt())},
		{Name: "Ready", Value: render.Time(d.GetReadyAt())},
		{Name: "Ended", Value: render.Time(d.GetEndedAt())},
		{Name: "Expires", Value: render.Time(d.GetExpiresAt())},
		{Name: "Workspace kept until", Value: render.Time(d.GetWorkspaceDeleteAfter())},
		{Name: "Uptime", Value: render.Span(b.GetCurrentUptime())},
		{Name: "Usage", Value: usage(b.GetCurrentUsage())},
	}
	if d.GetSequence() > 0 {
		f = append(f, render.Field{Name: "Sequence", Value: strconv.FormatUint(d.GetSequence(), 10)})
	}
	return f
}

func reason(text, code string) string {
	switch {
	case code == "":
		return text
	case text == "":
		return code
	default:
		return text + " (" + code + ")"
	}
}

func sortedPairs(m map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return strings.Join(out, ", ")
}

func limits(l *computev1.ResourceLimits) string {
	var out []string
	if n := l.GetCpuMillis(); n > 0 {
		out = append(out, fmt.Sprintf("%dm cpu", n))
	}
	if n := l.GetMemoryBytes(); n > 0 {
		out = append(out, render.Bytes(n)+" memory")
	}
	if n := l.GetPids(); n > 0 {
		out = append(out, fmt.Sprintf("%d pids", n))
	}
	if d := l.GetMaxRuntime(); d != nil {
		out = append(out, render.Span(d)+" runtime")
	}
	if d := l.GetIdleTimeout(); d != nil {
		out = append(out, render.Span(d)+" idle")
	}
	return strings.Join(out, ", ")
}

func usage(u *commonv1.UsageMetrics) string {
	if u == nil {
		return ""
	}
	return fmt.Sprintf("%s cpu, %s memory at most, %s read, %s written", render.Duration(time.Duration(u.GetCpuMs())*time.Millisecond), //nolint:gosec // years at most
		render.Bytes(u.GetMemoryPeakBytes()), render.Bytes(u.GetDiskReadBytes()), render.Bytes(u.GetDiskWriteBytes()))
}

// Rm is `sandtrail rm`.
type Rm struct {
	Server
	Sandboxes []string      `arg:"" name:"sandbox" help:"Their ids."`
	Timeout   time.Duration `default:"5m" help:"Give up after this long."`
}

// Run ends sandboxes, several at a time, and tells of each when it is gone. Failures of some do not keep the others; the exit
// code is that of the first in the order of the arguments.
func (r *Rm) Run(e *Env) error {
	var targets []string
	for _, s := range r.Sandboxes {
		id, err := sandboxID(s)
		if err != nil {
			return err
		}
		if !slices.Contains(targets, id) {
			targets = append(targets, id)
		}
	}
	ctx, api, done, err := r.connect(e, r.Timeout)
	if err != nil {
		return err
	}
	defer done()
	var (
		mu      sync.Mutex
		group   errgroup.Group
		failed  = make([]error, len(targets))
		answers = make([]*computev1.DestroySandboxResponse, len(targets))
	)
	group.SetLimit(parallelRemovals)
	for i, id := range targets {
		group.Go(func() error {
			asked := time.Now()
			answers[i], failed[i] = remove(ctx, api, id)
			took := time.Since(asked)
			mu.Lock()
			defer mu.Unlock()
			if failed[i] == nil && !r.json() {
				_, failed[i] = fmt.Fprintf(e.Stdout, "%s  gone, took %s\n", id, render.Duration(took))
			}
			return nil
		})
	}
	_ = group.Wait() // each failure stands in failed
	if r.json() {
		gone := slices.DeleteFunc(answers, func(a *computev1.DestroySandboxResponse) bool { return a == nil })
		if err := render.Many(e.Stdout, gone); err != nil {
			return err
		}
	}
	code := ExitOK
	for i, err := range failed {
		if err == nil {
			continue
		}
		if c := report(e.Stderr, aboutError{targets[i], err}, r.json()); code == ExitOK {
			code = c
		}
	}
	if code != ExitOK {
		return exitError(code)
	}
	return nil
}

func remove(ctx context.Context, api *client.Client, id string) (*computev1.DestroySandboxResponse, error) {
	ctx = client.WithKey(ctx, idempotencyKey(""))
	res, err := client.Retry(ctx, api, func(ctx context.Context) (*computev1.DestroySandboxResponse, error) {
		return api.DestroySandbox(ctx, &computev1.DestroySandboxRequest{SandboxId: id})
	})
	if err != nil {
		return nil, ended(ctx, err)
	}
	return res, nil
}
