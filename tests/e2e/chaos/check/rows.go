package check

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/ids"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
)

// row is what a row must hold, by column. Columns that say how it came to be there are not judged.
type row map[string]any

// unjudged are the columns that no event tells.
var unjudged = []string{"ingested_at", "schema_version"}

// sameRows: each exec that has ended has one row, each sandbox that was ready or has ended has one, with what the log says.
func (w *world) sameRows() []finding {
	var f findings
	if w.Execs != nil {
		want := map[string]row{}
		for _, x := range w.runs {
			if r := w.execRow(x); r != nil {
				want[r["id"].(string)] = r
			}
		}
		f.rows("row of exec", w.Execs, want, "exec_id")
	}
	if w.Sandboxes != nil {
		want := map[string]row{}
		for _, b := range w.boxes {
			if r := sandboxRow(b); r != nil {
				want[r["id"].(string)] = r
			}
		}
		f.rows("row of sandbox", w.Sandboxes, want, "sandbox_id")
	}
	return f
}

func (f *findings) rows(what string, have []evidence.Row, want map[string]row, name string) {
	seen := map[string]bool{}
	for _, r := range have {
		id := text(r["id"])
		subject := what + " " + text(r[name])
		if seen[id] {
			f.add(subject, "there is more than one with id %s", id)
			continue
		}
		seen[id] = true
		expected, ok := want[id]
		if !ok {
			f.add(subject, "nothing in the log leads to the one with id %s", id)
			continue
		}
		if d := expected.differing(r); len(d) > 0 {
			f.add(subject, "it differs from the log in %s", strings.Join(d, ", "))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(want)) {
		if !seen[id] {
			f.add(what+" "+text(want[id][name]), "it is missing")
		}
	}
}

func (w row) differing(r evidence.Row) []string {
	var names []string
	for _, column := range slices.Sorted(maps.Keys(w)) {
		if have, want := text(r[column]), text(w[column]); have != want {
			names = append(names, fmt.Sprintf("%s (%s, not %s)", column, have, want))
		}
	}
	for column := range r {
		if _, ok := w[column]; !ok && !slices.Contains(unjudged, column) {
			names = append(names, column+" (nothing is known of it)")
		}
	}
	return names
}

// text is a value of a column as it is compared. Times have one form, whatever ClickHouse cuts off at their end.
func text(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case json.Number:
		return v.String()
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano)
	case string:
		if t, err := time.Parse(time.RFC3339Nano, v); err == nil {
			return t.UTC().Format(time.RFC3339Nano)
		}
		return v
	default:
		return fmt.Sprint(v)
	}
}

func (w *world) execRow(x *run) row {
	if !x.state.Over() {
		return nil
	}
	end := last(x.events)
	r := row{
		"id": x.state.UsageEventID, "event_type": "exec_command", "tenant_id": x.agg.Tenant, "sandbox_id": x.agg.Sandbox, "exec_id": x.agg.ID,
		"occurred_at": end.Time, "event_id": end.ID, "stream_seq": end.Seq,
	}
	var session string
	if c := x.state.Completed; c != nil {
		r["outcome"], r["reason"], r["exit_code"], r["signal"] = "completed", c.GetReason(), c.GetExitCode(), c.GetSignal()
		r["wall_time_ms"], r["usage_method"] = c.GetWallTimeUs()/1000, c.GetUsageMethod()
		r["stdout_bytes"], r["stderr_bytes"] = c.GetStdout().GetBytes(), c.GetStderr().GetBytes()
		r.used(c.GetUsage())
		session = c.GetSessionId()
	} else {
		l := x.state.Lost
		r["outcome"], r["reason"], r["exit_code"], r["signal"] = "lost", l.GetReason(), nil, 0
		r["wall_time_ms"], r["usage_method"] = l.GetWallTimeUs()/1000, ""
		r["stdout_bytes"], r["stderr_bytes"] = l.GetStdoutBytes(), l.GetStderrBytes()
		r.used(l.GetUsage())
		session = l.GetSessionId()
	}
	if b := w.boxes[x.agg.Sandbox]; b != nil {
		r["org_id"] = b.state.OrgID
		if session == "" {
			session = b.state.SessionID
		}
	}
	r["session_id"] = session
	return r
}

// sandboxRow is made from the last fact that says what the sandbox has used; nil without one.
func sandboxRow(b *box) row {
	for _, e := range slices.Backward(b.events) {
		r := row{
			"id": ids.Usage(b.agg.ID), "event_type": "sandbox_uptime", "tenant_id": b.agg.Tenant, "sandbox_id": b.agg.ID,
			"session_id": b.state.SessionID, "org_id": b.state.OrgID, "occurred_at": e.Time, "event_id": e.ID, "stream_seq": e.Seq,
		}
		switch v := e.Body.(type) {
		case *eventsv1.SandboxReady:
			r.lived("ready", "", 0, nil)
		case *eventsv1.SandboxUsageSampled:
			r.lived("ready", "", v.GetUptimeMs(), v.GetUsage())
		case *eventsv1.SandboxStopped:
			r.lived("stopped", "", v.GetUptimeMs(), v.GetUsage())
		case *eventsv1.SandboxFailed:
			r.lived("failed", v.GetReason(), v.GetUptimeMs(), v.GetUsage())
		case *eventsv1.SandboxDestroyed:
			r.lived("destroyed", v.GetReason(), v.GetUptimeMs(), v.GetUsage())
		default:
			continue
		}
		return r
	}
	return nil
}

func (w row) lived(outcome, reason string, uptime uint64, u *commonv1.UsageMetrics) {
	w["outcome"], w["reason"], w["uptime_ms"] = outcome, reason, uptime
	w.used(u)
}

func (w row) used(u *commonv1.UsageMetrics) {
	w["cpu_ms"], w["memory_peak_bytes"], w["memory_avg_bytes"] = u.GetCpuMs(), u.GetMemoryPeakBytes(), u.GetMemoryAvgBytes()
	w["disk_read_bytes"], w["disk_write_bytes"] = u.GetDiskReadBytes(), u.GetDiskWriteBytes()
	w["network_egress_bytes"], w["network_ingress_bytes"] = u.GetNetworkEgressBytes(), u.GetNetworkIngressBytes()
	w["gpu_ms"], w["gpu_memory_bytes"] = u.GetGpuMs(), u.GetGpuMemoryBytes()
}
