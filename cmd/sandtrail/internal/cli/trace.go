package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/client"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

const (
	// maxTraced bounds the events of a trace, maxBilled the execs whose usage rows are asked for.
	maxTraced = 10_000
	maxBilled = 100
)

// Trace is `sandtrail trace`.
type Trace struct {
	Server
	ID      string        `arg:"" help:"Of a request (correlation id), command, event, exec, sandbox or usage row; or a sequence of the log."`
	Sandbox string        `placeholder:"ID" help:"Look among the events of this sandbox only, which is quicker."`
	Timeout time.Duration `default:"10m" help:"Give up after this long."`
}

// Help is printed below the flags.
func (t *Trace) Help() string {
	return "Shows what one request led to, over all services: commands, events, where it ran, output, usage rows. Reads the tenant's whole log twice unless --sandbox is given."
}

// Run finds the request and shows its tree.
func (t *Trace) Run(e *Env) error {
	if t.ID == "" || len(t.ID) > 256 {
		return usagef("%q is no id", t.ID)
	}
	if t.Sandbox != "" {
		var err error
		if t.Sandbox, err = sandboxID(t.Sandbox); err != nil {
			return err
		}
	}
	ctx, api, done, err := t.connect(e, t.Timeout)
	if err != nil {
		return err
	}
	defer done()
	traced, err := t.events(ctx, api)
	if err != nil {
		return ended(ctx, err)
	}
	rows, err := t.bills(ctx, api, traced)
	if err != nil {
		// What happened is known all the same.
		report(e.Stderr, aboutError{"usage rows", ended(ctx, err)}, t.json())
	}
	all := trees(traced, rows)
	if t.json() {
		return render.Value(e.Stdout, map[string]any{"requests": all})
	}
	for i, n := range all {
		if i > 0 {
			fmt.Fprintln(e.Stdout)
		}
		if err := n.write(e.Stdout, ""); err != nil {
			return err
		}
	}
	return nil
}

// happening is an event and the aggregate that it happened to.
type happening struct {
	agg subject.Aggregate
	envelope.Recorded
}

// means reports whether the id is one of an event's.
func (h happening) means(id string) bool {
	switch id {
	case h.ID, h.Cause, h.Correlation, strconv.FormatUint(h.Seq, 10), ids.Usage(h.ID):
		return true
	case h.agg.ID:
		return h.agg.Kind == subject.KindExec || h.agg.Kind == subject.KindSandbox
	}
	return false
}

// request names what an event belongs to: its request or, of one that nobody asked for, its command.
func (h happening) request() string {
	if h.Correlation != "" {
		return h.Correlation
	}
	return h.Cause
}

// events reads which requests are meant, and then all that belongs to them.
func (t *Trace) events(ctx context.Context, api *client.Client) ([]happening, error) {
	id := t.ID
	if lower := strings.ToLower(id); ids.Valid(lower) {
		id = lower
	}
	wanted := map[string]bool{}
	if err := t.each(ctx, api, func(h happening) error {
		if h.means(id) {
			wanted[h.request()] = true
		}
		return nil
	}); err != nil {
		return nil, err
	}
	var all []happening
	err := t.each(ctx, api, func(h happening) error {
		if !wanted[h.request()] {
			return nil
		}
		if len(all) == maxTraced {
			return fault.Newf(fault.ResourceExhausted, fault.ReasonTooLarge, "the trace has more than %d events; trace an exec of it", maxTraced)
		}
		all = append(all, h)
		return nil
	})
	if err == nil && len(all) == 0 {
		err = fault.New(fault.NotFound, fault.ReasonEventNotFound, "nothing that you may see has this id")
	}
	return all, err
}

func (t *Trace) each(ctx context.Context, api *client.Client, each func(happening) error) error {
	req := &computev1.WatchEventsRequest{TenantId: t.Tenant, SandboxId: t.Sandbox, NoFollow: true}
	return watch(ctx, api, req, func(agg subject.Aggregate, e envelope.Recorded) error { return each(happening{agg, e}) })
}

// bills are the usage rows of the execs among events, by the sequence of the event that each was made from.
func (t *Trace) bills(ctx context.Context, api *client.Client, all []happening) (map[uint64][]*computev1.UsageRow, error) {
	rows, asked := map[uint64][]*computev1.UsageRow{}, map[string]bool{}
	for _, h := range all {
		if h.agg.Kind != subject.KindExec || asked[h.agg.ID] || len(asked) == maxBilled {
			continue
		}
		asked[h.agg.ID] = true
		found, err := api.Usage(ctx, &computev1.ListUsageRequest{TenantId: t.Tenant, ExecId: h.agg.ID}, 0)
		if err != nil {
			return rows, err
		}
		for _, r := range found {
			rows[r.GetStreamSequence()] = append(rows[r.GetStreamSequence()], r)
		}
	}
	return rows, nil
}
