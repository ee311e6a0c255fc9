package cli

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// execJSON is an exec as its events tell it.
type execJSON struct {
	ExecID          string     `json:"exec_id"`
	SandboxID       string     `json:"sandbox_id"`
	TenantID        string     `json:"tenant_id"`
	State           string     `json:"state"`
	Reason          string     `json:"reason,omitempty"`
	Message         string     `json:"message,omitempty"`
	Command         []string   `json:"command"`
	SessionID       string     `json:"session_id,omitempty"`
	Worker          string     `json:"worker,omitempty"`
	RequestedAt     *time.Time `json:"requested_at"`
	StartedAt       *time.Time `json:"started_at"`
	EndedAt         *time.Time `json:"ended_at"`
	CancelRequested string     `json:"cancel_requested,omitempty"`
	// ExitCode is null where none is known.
	ExitCode     *int32 `json:"exit_code"`
	WallTimeUs   uint64 `json:"wall_time_us,omitempty"`
	CPUMs        uint64 `json:"cpu_ms,omitempty"`
	StdoutBytes  uint64 `json:"stdout_bytes,omitempty"`
	StderrBytes  uint64 `json:"stderr_bytes,omitempty"`
	UsageEventID string `json:"usage_event_id,omitempty"`
	Sequence     uint64 `json:"sequence"`
}

func execPicture(h eventlog.History) (picture, error) {
	x, err := sandbox.FoldExec(h)
	if err != nil {
		return picture{}, err
	}
	out := execJSON{
		ExecID: x.ID, SandboxID: x.Sandbox, TenantID: x.Tenant, State: x.State, Command: append([]string{x.Spec.GetCommand()}, x.Spec.GetArgs()...),
		SessionID: x.Spec.GetSessionId(), Worker: x.Worker, RequestedAt: optional(x.RequestedAt), StartedAt: optional(x.StartedAt),
		EndedAt: optional(x.EndedAt), CancelRequested: x.CancelRequested, UsageEventID: x.UsageEventID, Sequence: x.LastSeq,
	}
	exit := ""
	switch {
	case x.Completed != nil:
		c := x.Completed
		n := c.GetExitCode()
		out.ExitCode, exit = &n, strconv.Itoa(int(n))
		out.Reason, out.Message, out.WallTimeUs, out.CPUMs = c.GetReason(), c.GetMessage(), c.GetWallTimeUs(), c.GetUsage().GetCpuMs()
		out.StdoutBytes, out.StderrBytes = c.GetStdout().GetBytes(), c.GetStderr().GetBytes()
	case x.Lost != nil:
		l := x.Lost
		out.Reason, out.Message, out.WallTimeUs, out.CPUMs = l.GetReason(), l.GetMessage(), l.GetWallTimeUs(), l.GetUsage().GetCpuMs()
		out.StdoutBytes, out.StderrBytes = l.GetStdoutBytes(), l.GetStderrBytes()
	}
	doc, err := json.Marshal(out)
	return picture{doc, []render.Field{
		{Name: "Exec", Value: x.ID},
		{Name: "Sandbox", Value: x.Sandbox},
		{Name: "Tenant", Value: x.Tenant},
		{Name: "State", Value: x.State},
		{Name: "Reason", Value: reason(out.Message, out.Reason)},
		{Name: "Exit code", Value: exit},
		{Name: "Command", Value: strings.Join(out.Command, " ")},
		{Name: "Session", Value: out.SessionID},
		{Name: "Worker", Value: x.Worker},
		{Name: "Requested", Value: clock(x.RequestedAt)},
		{Name: "Started", Value: clock(x.StartedAt)},
		{Name: "Ended", Value: clock(x.EndedAt)},
		{Name: "End asked for", Value: x.CancelRequested},
		{Name: "Usage row", Value: x.UsageEventID},
		{Name: "Sequence", Value: number(x.LastSeq)},
	}}, err
}

// ReplayTenant is `sandtrail replay tenant`.
type ReplayTenant struct {
	Server
	Past
	ID string `arg:"" help:"Its id."`
}

// Help is printed below the flags.
func (r *ReplayTenant) Help() string {
	return "Shows its keys, its sandboxes by state and the execs that run. Reads all that the tenant ever did."
}

// Run folds all events of the tenant.
func (r *ReplayTenant) Run(e *Env) error {
	if !subject.ValidTenant(r.ID) {
		return usagef("%q is not the id of a tenant", r.ID)
	}
	at, err := r.moment()
	if err != nil {
		return err
	}
	var (
		p    = &population{tenant: tenant.Tenant{ID: r.ID}, sandboxes: map[string]sandbox.Sandbox{}, execs: map[string]sandbox.Exec{}}
		then picture
		over bool
		left int
	)
	err = r.read(e, &computev1.WatchEventsRequest{TenantId: r.ID, NoFollow: true}, func(agg subject.Aggregate, ev envelope.Recorded) error {
		if !over && !at.covers(ev) {
			over = true
			var err error
			if then, err = p.picture(); err != nil {
				return err
			}
			left = p.events
		}
		return p.add(agg, ev)
	})
	if err != nil {
		return err
	}
	now, err := p.picture()
	if err != nil {
		return err
	}
	if !over {
		then, left = now, p.events
	}
	switch {
	case left == 0:
		return fault.Newf(fault.NotFound, fault.ReasonTenantNotFound, "tenant %s has no event up to there", r.ID)
	case at.end():
		return now.show(e, r.json())
	}
	return compare(e, r.json(), then, now, p.events-left)
}

// population is a tenant and what of it is there: sandboxes and execs whose end is recorded are only counted.
type population struct {
	tenant           tenant.Tenant
	sandboxes        map[string]sandbox.Sandbox
	execs            map[string]sandbox.Exec
	destroyed, ended int
	events           int
	last             envelope.Recorded
}

func (p *population) add(agg subject.Aggregate, e envelope.Recorded) error {
	p.events, p.last = p.events+1, e
	switch agg.Kind {
	case subject.KindTenant:
		p.tenant = p.tenant.Evolve(e)
	case subject.KindSandbox:
		b, ok := p.sandboxes[agg.ID]
		if !ok {
			b.ID = agg.ID
		}
		next, err := b.Evolve(e)
		if err != nil {
			return aboutError{"sandbox " + agg.ID, err}
		}
		if p.sandboxes[agg.ID] = next; next.State == sandbox.Destroyed {
			delete(p.sandboxes, agg.ID)
			p.destroyed++
		}
	case subject.KindExec:
		next, err := p.execs[agg.ID].Evolve(e)
		if err != nil {
			return aboutError{"exec " + agg.ID, err}
		}
		if p.execs[agg.ID] = next; next.Over() {
			delete(p.execs, agg.ID)
			p.ended++
		}
	}
	return nil
}

// picture is how it stands now. Keys count by the time of the last event.
func (p *population) picture() (picture, error) {
	type keyState struct {
		Name   string   `json:"name"`
		Prefix string   `json:"prefix"`
		Scopes []string `json:"scopes"`
		State  string   `json:"state"`
	}
	keys, live := map[string]keyState{}, 0
	for _, k := range p.tenant.Keys {
		keys[k.ID] = keyState{k.Name, k.Prefix, k.Scopes.Names(), k.State(p.last.Time)}
		if k.Works(p.last.Time) {
			live++
		}
	}
	states := map[string]int{}
	for _, b := range p.sandboxes {
		states[b.State]++
	}
	if p.destroyed > 0 {
		states[sandbox.Destroyed] = p.destroyed
	}
	doc, err := json.Marshal(struct {
		TenantID  string              `json:"tenant_id"`
		Name      string              `json:"name"`
		CreatedAt *time.Time          `json:"created_at"`
		Keys      map[string]keyState `json:"keys"`
		Sandboxes map[string]int      `json:"sandboxes"`
		Running   int                 `json:"execs_running"`
		Ended     int                 `json:"execs_ended"`
		Events    int                 `json:"events"`
		Sequence  uint64              `json:"sequence"`
	}{p.tenant.ID, p.tenant.Name, optional(p.tenant.CreatedAt), keys, states, len(p.execs), p.ended, p.events, p.last.Seq})
	var counts []string
	for _, s := range []string{
		sandbox.Requested, sandbox.Scheduled, sandbox.Starting, sandbox.Ready, sandbox.Stopping, sandbox.Stopped, sandbox.Failed, sandbox.Destroying, sandbox.Destroyed,
	} {
		if states[s] > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", states[s], s))
		}
	}
	return picture{doc, []render.Field{
		{Name: "Tenant", Value: p.tenant.ID},
		{Name: "Name", Value: p.tenant.Name},
		{Name: "Created", Value: clock(p.tenant.CreatedAt)},
		{Name: "Live keys", Value: strconv.Itoa(live)},
		{Name: "Sandboxes", Value: strings.Join(counts, ", ")},
		{Name: "Execs", Value: fmt.Sprintf("%d open, %d ended", len(p.execs), p.ended)},
		{Name: "Events", Value: strconv.Itoa(p.events)},
		{Name: "Sequence", Value: number(p.last.Seq)},
	}}, err
}
