package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/audit"
	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/permission"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// AuditCalls is `sandtrail audit log`.
type AuditCalls struct {
	Log
	Tenant  string `placeholder:"ID" env:"SANDTRAIL_TENANT" help:"Only calls of a tenant; _none: of strangers."`
	Key     string `placeholder:"ID" help:"Only calls with an API key, by its id or the name that it has in a file."`
	Action  string `placeholder:"NAME" help:"Only calls of an action, such as CreateSandbox."`
	Outcome string `placeholder:"NAME" help:"Only calls that ended so: ok, refused or failed, or a reason such as scope."`
	Request string `placeholder:"ID" help:"Only the call with a correlation id, which its answer and its events have too."`
	Since   string `placeholder:"AGE|TIME" help:"Only what was recorded since then: 1h, or 2026-11-30T12:00:00Z."`
	Until   string `placeholder:"AGE|TIME" help:"Only what began before then."`
	After   uint64 `placeholder:"SEQUENCE" help:"Go on behind a record: the last one of the page before."`
	Limit   int    `default:"100" help:"At most so many, 1 to 10,000; with --follow as many as come."`
	Follow  bool   `short:"f" xor:"do" help:"Go on with what is recorded from now on; with --output json one line each."`
	Verify  bool   `xor:"do" help:"List nothing, but say whether records were altered, put in, or taken out between others: all, or those of --tenant."`
}

const (
	// maxCalls bounds a page.
	maxCalls = 10_000
	// usualTimeout is that of Log.
	usualTimeout = 5 * time.Minute
)

// Run lists them, oldest first.
func (a *AuditCalls) Run(e *Env) error {
	pick, from, err := a.filter(time.Now())
	if err != nil {
		return err
	}
	if a.Follow && a.Timeout == usualTimeout {
		a.Timeout = 365 * 24 * time.Hour // nobody asked for an end
	}
	ctx, js, done, err := a.connect(e, permission.Operator)
	if err != nil {
		return err
	}
	defer done()
	subj := subject.Calls
	if a.Tenant != "" {
		subj = subject.Call(a.Tenant)
	}
	if a.Verify {
		return a.verify(ctx, e, js, subj)
	}
	seq := a.After + 1
	if !from.IsZero() {
		at, err := directget.SeqAt(ctx, js, topology.StreamCalls, subj, from)
		if err != nil {
			return ended(ctx, err)
		}
		if seq = max(seq, at); at == 0 && !a.Follow {
			return a.show(e, nil, false)
		}
	}
	var page []callJSON
	p := pager{js: js, subject: subj, pick: pick, next: seq}
	for more := true; more && len(page) < a.Limit; {
		var c *callJSON
		if c, more, err = p.read(ctx); err != nil {
			return ended(ctx, err)
		}
		if c != nil {
			page = append(page, *c)
		}
	}
	if !a.Follow {
		return a.show(e, page, len(page) == a.Limit)
	}
	return a.follow(ctx, e, &p, page)
}

// filter checks the flags: what to pick, and from when on to read; zero: from the beginning.
func (a *AuditCalls) filter(now time.Time) (pick func(*eventsv1.CallEnded) bool, from time.Time, err error) {
	if a.Tenant != "" && a.Tenant != subject.NoTenant && !subject.ValidTenant(a.Tenant) {
		return nil, from, usagef("--tenant: %q is not the id of a tenant", a.Tenant)
	}
	if a.Limit < 1 || a.Limit > maxCalls {
		return nil, from, usagef("--limit: %d is not from 1 to %d", a.Limit, maxCalls)
	}
	if from, err = ageOrTime("--since", a.Since, now); err != nil {
		return nil, from, err
	}
	until, err := ageOrTime("--until", a.Until, now)
	if err != nil {
		return nil, from, err
	}
	return func(c *eventsv1.CallEnded) bool {
		return (a.Key == "" || c.GetKeyId() == a.Key) && (a.Action == "" || strings.EqualFold(c.GetAction(), a.Action)) &&
			(a.Request == "" || c.GetCorrelationId() == a.Request) &&
			(a.Outcome == "" || c.GetOutcome() == a.Outcome || c.GetReason() == a.Outcome) &&
			(until.IsZero() || c.GetBeganAt().AsTime().Before(until))
	}, from, nil
}

// ageOrTime reads an age or a time; zero for nothing.
func ageOrTime(flag, s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return at, usagef("%s: %q is neither an age such as 90m nor a time such as 2026-11-30T12:00:00Z", flag, s)
	}
	return at, nil
}

// pager reads records one after another.
type pager struct {
	js      jetstream.JetStream
	subject string
	pick    func(*eventsv1.CallEnded) bool
	next    uint64
	// read ahead, and whether there is more behind it.
	page    []directget.Message
	pending bool
}

// callPage is how many records are read at once.
const callPage = 500

// read gives the next record that is picked, nil for one that is not, and whether there may be more.
func (p *pager) read(ctx context.Context) (*callJSON, bool, error) {
	if len(p.page) == 0 {
		page, pending, err := directget.Page(ctx, p.js, topology.StreamCalls, p.subject, p.next, callPage, 4<<20)
		if err != nil || len(page) == 0 {
			return nil, false, err
		}
		p.page, p.pending = page, pending > 0
	}
	m := p.page[0]
	p.page, p.next = p.page[1:], m.Seq+1
	more := len(p.page) > 0 || p.pending
	c := &eventsv1.CallEnded{}
	if err := proto.Unmarshal(m.Data, c); err != nil {
		return nil, more, fault.New(fault.Internal, fault.ReasonUnknownEvent, fmt.Sprintf("record %d cannot be read", m.Seq)).Because(err)
	}
	if !p.pick(c) {
		return nil, more, nil
	}
	j, err := callOf(m.Seq, c)
	return j, more, err
}

// verify checks the chains of records, and ends with ExitTampered where anything is wrong.
func (a *AuditCalls) verify(ctx context.Context, e *Env, js jetstream.JetStream, subj string) error {
	calls := audit.NewCalls()
	if err := directget.Each(ctx, js, topology.StreamCalls, subj, 1, calls.Add); err != nil {
		return ended(ctx, err)
	}
	r := calls.Report()
	if err := a.tell(e, r); err != nil {
		return err
	}
	if !r.OK() {
		return exitError(ExitTampered)
	}
	return nil
}

func (a *AuditCalls) tell(e *Env, r audit.CallsReport) error {
	if a.json() {
		out := struct {
			OK bool `json:"ok"`
			audit.CallsReport
		}{r.OK(), r}
		if out.Findings == nil {
			out.Findings = []*audit.Finding{}
		}
		if out.Total == nil {
			out.Total = map[audit.Kind]int{}
		}
		return render.Value(e.Stdout, out)
	}
	result := "whole"
	if !r.OK() {
		result = "NOT what was recorded"
	}
	err := render.Fields(e.Stdout, []render.Field{
		{Name: "Records", Value: fmt.Sprintf("%d in %d chains, to sequence %d", r.Records, r.Chains, r.LastSeq)},
		{Name: "Result", Value: result},
	})
	if err != nil || r.OK() {
		return err
	}
	return findings(e, "SUBJECT", r.Findings, r.Total)
}

// callJSON is a record as programs get it: one object with the record's fields and its sequence, 64-bit numbers as strings.
type callJSON struct {
	sequence uint64
	record   *eventsv1.CallEnded
	fields   json.RawMessage
}

func callOf(seq uint64, c *eventsv1.CallEnded) (*callJSON, error) {
	data, err := render.Proto(c)
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	fields["sequence"] = json.RawMessage(strconv.Quote(strconv.FormatUint(seq, 10)))
	data, err = json.Marshal(fields)
	return &callJSON{sequence: seq, record: c, fields: data}, err
}

// MarshalJSON gives the object.
func (c callJSON) MarshalJSON() ([]byte, error) { return c.fields, nil }

var callHeader = []string{"SEQUENCE", "TIME", "TENANT", "ACTOR", "API", "ACTION", "TARGET", "OUTCOME", "TOOK", "CALLS"}

func (c callJSON) row() []string {
	r := c.record
	target := r.GetSandboxId()
	if r.GetExecId() != "" {
		target += "/" + r.GetExecId()
	}
	outcome := r.GetOutcome()
	if r.GetReason() != "" {
		outcome += ": " + r.GetReason()
	}
	took := (time.Duration(min(r.GetDurationUs(), 1<<50)) * time.Microsecond).Round(100 * time.Microsecond).String() //nolint:gosec // bounded
	if r.GetCount() > 1 {
		took = "-"
	}
	return []string{
		strconv.FormatUint(c.sequence, 10), r.GetBeganAt().AsTime().Format(time.RFC3339), r.GetTenantId(), r.GetActor(), r.GetApi(), r.GetAction(), target,
		outcome, took, strconv.FormatUint(r.GetCount(), 10),
	}
}

func (a *AuditCalls) show(e *Env, page []callJSON, more bool) error {
	if page == nil {
		page = []callJSON{}
	}
	if more {
		e.warn("there may be more: --after %d", page[len(page)-1].sequence)
	}
	if a.json() {
		return render.Value(e.Stdout, page)
	}
	table := render.Table{Header: callHeader}
	for _, c := range page {
		table.Rows = append(table.Rows, c.row())
	}
	return table.Write(e.Stdout)
}

// callsEvery is how often the stream is asked for more.
const callsEvery = 500 * time.Millisecond

func (a *AuditCalls) follow(ctx context.Context, e *Env, p *pager, page []callJSON) error {
	for _, c := range page {
		if err := a.line(e, c); err != nil {
			return err
		}
	}
	tick := time.NewTicker(callsEvery)
	defer tick.Stop()
	for {
		c, more, err := p.read(ctx)
		if err != nil {
			return ended(ctx, err)
		}
		if c != nil {
			if err := a.line(e, *c); err != nil {
				return err
			}
		}
		if more {
			continue
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ended(ctx, ctx.Err())
		}
	}
}

func (a *AuditCalls) line(e *Env, c callJSON) error {
	if a.json() {
		data, err := json.Marshal(c)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(e.Stdout, "%s\n", data)
		return err
	}
	_, err := fmt.Fprintln(e.Stdout, strings.Join(c.row(), "  "))
	return err
}
