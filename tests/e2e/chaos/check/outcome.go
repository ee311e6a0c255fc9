package check

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/sandbox"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

// oneOutcome: an acknowledged command has exactly one outcome, and of a refused one nothing came.
func oneOutcome(w *world) []finding {
	var f findings
	for _, b := range sorted(w.boxes) {
		if n := count[*eventsv1.SandboxRequested](b.events); n != 1 {
			f.add(b.agg.Subject(), "it was requested %d times", n)
		}
		if n := count[*eventsv1.SandboxDestroyed](b.events); n > 1 {
			f.add(b.agg.Subject(), "it was destroyed %d times", n)
		}
	}
	for _, x := range sorted(w.runs) {
		if n := count[*eventsv1.ExecCompleted](x.events) + count[*eventsv1.ExecLost](x.events); n > 1 {
			f.add(x.agg.Subject(), "it ended %d times", n)
		}
	}
	f = append(f, w.turns()...)
	f = append(f, w.calls()...)
	f = append(f, w.repeats()...)
	for _, m := range w.waiting() {
		if age := w.Taken.Sub(m.Stored); age > w.settle {
			f.add(m.Subject, "its command waits since %s", age.Round(time.Millisecond))
		}
	}
	for _, m := range w.Dead {
		f.add(m.Subject, "it was set aside: nobody carried it out")
	}
	return f
}

// calls judges each call by itself.
func (w *world) calls() findings {
	var f findings
	made := w.byKey()
	for _, c := range w.Calls {
		switch {
		case c.Answer != journal.Acknowledged:
		case c.Op == journal.Create:
			w.created(&f, c, made[c.Key])
		case c.Op == journal.Exec, c.Op == journal.Attach:
			w.executed(&f, c)
		case c.Op == journal.Cancel:
			w.cancelled(&f, c)
		case c.Op == journal.Destroy:
			if b := w.boxes[c.Sandbox]; b == nil || b.state.State != sandbox.Destroyed {
				f.add("sandbox "+c.Sandbox, "its end was acknowledged in call %d, and it is not destroyed", c.Number)
			}
		}
	}
	return f
}

// turns: each key of a stop or a start had its effect once, and none that was acknowledged had none.
func (w *world) turns() findings {
	var f findings
	type keys struct{ called, acknowledged map[string]bool }
	by := map[string]map[journal.Op]keys{}
	for _, c := range w.Calls {
		if c.Op != journal.Stop && c.Op != journal.Restart {
			continue
		}
		if by[c.Sandbox] == nil {
			by[c.Sandbox] = map[journal.Op]keys{journal.Stop: {map[string]bool{}, map[string]bool{}}, journal.Restart: {map[string]bool{}, map[string]bool{}}}
		}
		by[c.Sandbox][c.Op].called[c.Key] = true
		if c.Answer == journal.Acknowledged {
			by[c.Sandbox][c.Op].acknowledged[c.Key] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(by)) {
		b := w.boxes[id]
		if b == nil {
			continue
		}
		stops := count[*eventsv1.SandboxStopping](b.events)
		starts, nothing := b.startedAgain()
		for op, n := range map[journal.Op]int{journal.Stop: stops, journal.Restart: starts} {
			done := n
			if op == journal.Restart {
				done -= nothing
			}
			if called := len(by[id][op].called); done > called {
				f.add(b.agg.Subject(), "it was asked %d times to %s, and did so %d times", called, op, done)
			}
			// One that is stopped already is no error to stop: a start that came to nothing leaves it so.
			if op == journal.Stop {
				n = count[*eventsv1.SandboxStopped](b.events)
			}
			if told := len(by[id][op].acknowledged); n < told {
				f.add(b.agg.Subject(), "%d orders to %s were acknowledged, and it did so %d times", told, op, n)
			}
		}
	}
	return f
}

// startedAgain is how many starts of it were accepted while it was stopped, and how many of them came to nothing: it was stopped again
// with nobody's word. Who is not told of that repeats the start under the same key, and it is tried anew.
func (b *box) startedAgain() (starts, nothing int) {
	stopped, trying := false, false
	for _, e := range b.events {
		switch e.Body.(type) {
		case *eventsv1.SandboxStopped:
			if trying {
				nothing++
			}
			stopped, trying = true, false
		case *eventsv1.SandboxStarting:
			if stopped {
				starts++
				trying = true
			}
			stopped = false
		case *eventsv1.SandboxReady, *eventsv1.SandboxStopping:
			trying = false
		}
	}
	return starts, nothing
}

func (w *world) cancelled(f *findings, c journal.Call) {
	x := w.runs[c.Exec]
	if x == nil || !x.state.Over() {
		f.add("exec "+c.Exec, "its cancel was acknowledged in call %d, and it has no end", c.Number)
		return
	}
	// Also by the toolbox's measure: the clocks of those who wrote the events may have been set meanwhile.
	ran := time.Duration(x.state.Completed.GetWallTimeUs()) * time.Microsecond //nolint:gosec // a time
	if on := x.state.EndedAt.Sub(c.Ended); on > w.settle && ran > w.settle {
		f.add(x.agg.Subject(), "its cancel was acknowledged in call %d, and it ran on for %s", c.Number, on.Round(time.Second))
	}
}

func (w *world) created(f *findings, c journal.Call, made []string) {
	b := w.boxes[c.Sandbox]
	switch {
	case b == nil:
		f.add("sandbox "+c.Sandbox, "its create was acknowledged in call %d, and the log does not know it", c.Number)
	case c.Key != "" && !slices.Equal(made, []string{c.Sandbox}):
		f.add(b.agg.Subject(), "call %d was answered with it, and its key made %v", c.Number, made)
	case w.underWay(b):
		f.add(b.agg.Subject(), "its create was acknowledged in call %d, and it is still %s", c.Number, b.state.State)
	}
}

// underWay: it is on its way to another state for longer than it may.
func (w *world) underWay(b *box) bool {
	return between(b) && w.Taken.Sub(last(b.events).Time) > w.settle
}

// between: it is in a state that it leaves by itself.
func between(b *box) bool {
	return slices.Contains([]string{sandbox.Requested, sandbox.Scheduled, sandbox.Starting, sandbox.Stopping, sandbox.Destroying}, b.state.State)
}

func (w *world) executed(f *findings, c journal.Call) {
	x := w.runs[c.Exec]
	if x == nil {
		f.add("exec "+c.Exec, "it was acknowledged in call %d, and the log does not know it", c.Number)
		return
	}
	if x.state.Over() || !w.mustBeOver(x) {
		return
	}
	f.add(x.agg.Subject(), "it was acknowledged in call %d, and has no end", c.Number)
}

// mustBeOver: its sandbox has ended, or its program had more than the time that it needs.
func (w *world) mustBeOver(x *run) bool {
	if b := w.boxes[x.agg.Sandbox]; b == nil || b.state.Over() || b.state.State == sandbox.Stopped && w.Taken.Sub(last(b.events).Time) > w.settle {
		return true
	}
	if x.program == nil || x.program.Endless {
		return false
	}
	lines := max(x.program.StdoutLines, x.program.StderrLines)
	needs := 2 * time.Duration(lines) * x.program.Step //nolint:gosec // a number of lines
	return w.Taken.Sub(x.state.RequestedAt) > needs+w.settle
}

// byKey are the sandboxes that each key of a create made.
func (w *world) byKey() map[string][]string {
	made := map[string][]string{}
	for _, b := range sorted(w.boxes) {
		if key := b.state.Labels[journal.Label]; key != "" {
			made[key] = append(made[key], b.agg.ID)
		}
	}
	return made
}

// byToken are the execs that each program was started as.
func (w *world) byToken() map[string][]*run {
	by := map[string][]*run{}
	for _, x := range sorted(w.runs) {
		if x.token != "" {
			by[x.token] = append(by[x.token], x)
		}
	}
	return by
}

// request is what calls repeat: the same key, or the same program.
type request struct {
	tenant string
	op     journal.Op
	key    string
}

// repeats judges the calls that ask for the same together: one thing came of them at most, none where all were refused, and every
// answer names the same.
func (w *world) repeats() findings {
	var f findings
	groups := map[request][]journal.Call{}
	var order []request
	for _, c := range w.Calls {
		if c.Key == "" || c.Op != journal.Create && c.Op != journal.Exec {
			continue
		}
		r := request{c.Tenant, c.Op, c.Key}
		if groups[r] == nil {
			order = append(order, r)
		}
		groups[r] = append(groups[r], c)
	}
	made, started := w.byKey(), w.byToken()
	for _, r := range order {
		var answers, came []string
		refused := true
		for _, c := range groups[r] {
			refused = refused && c.Answer == journal.Refused
			id := c.Sandbox
			if c.Op == journal.Exec {
				id = c.Exec
			}
			if c.Answer == journal.Acknowledged && !slices.Contains(answers, id) {
				answers = append(answers, id)
			}
		}
		if r.op == journal.Create {
			came = made[r.key]
		} else if p := groups[r][0].Program; p != nil {
			for _, x := range started[p.Token] {
				if !refused || x.state.Started() {
					came = append(came, x.agg.ID)
				}
			}
		}
		name := string(r.op) + " of tenant " + r.tenant + " with key " + r.key
		if len(answers) > 1 {
			f.add(name, "it was answered with %s", strings.Join(answers, " and "))
		}
		if len(came) > 1 {
			f.add(name, "it made %s", strings.Join(came, " and "))
		}
		if refused && len(came) > 0 {
			f.add(name, "it was refused and made %s", strings.Join(came, " and "))
		}
	}
	return f
}

// unsettled names what is on its way to an outcome.
func unsettled(w *world) []finding {
	var f findings
	for _, b := range sorted(w.boxes) {
		if between(b) {
			f.add(b.agg.Subject(), "it is %s", b.state.State)
		}
	}
	for _, x := range sorted(w.runs) {
		if b := w.boxes[x.agg.Sandbox]; !x.state.Over() && (b == nil || b.state.Over() || b.state.State == sandbox.Stopped) {
			f.add(x.agg.Subject(), "its sandbox has ended and it has not")
		}
	}
	for _, m := range w.waiting() {
		f.add(m.Subject, "its command waits")
	}
	return f
}

// waiting are the commands that nobody is done with. A server that ends in the middle of removing one that was acknowledged leaves
// it in the stream, where no consumer is given it again, until its age removes it.
func (w *world) waiting() []evidence.Message {
	return slices.DeleteFunc(slices.Clone(w.Pending), func(m evidence.Message) bool {
		return slices.ContainsFunc(w.Consumers, func(c evidence.Consumer) bool {
			return m.Seq <= c.Acknowledged && slices.ContainsFunc(c.Filters, func(filter string) bool {
				prefix, all := strings.CutSuffix(filter, ">")
				return all && strings.HasPrefix(m.Subject, prefix)
			})
		})
	})
}
