package check

import (
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
)

// sameLife: a sandbox that the log says is ready has its keeper and its sentry, one that has ended has no process, and every
// process is of a sandbox that the log knows; within the time that they may disagree.
func sameLife(w *world) []finding {
	var f findings
	if s := w.Settled; s != nil && !s.Agreed {
		f.add("log and hosts", "they did not agree within %s", s.Took)
	}
	if w.Hosts == nil {
		return f
	}
	looked := map[string]bool{}
	roles := map[string]map[string]int{}
	for _, h := range w.Hosts {
		looked[h.Worker] = true
		for _, r := range h.Found {
			if r.Kind != evidence.Process || r.Zombie || r.Sandbox == "" {
				continue
			}
			if roles[r.Sandbox] == nil {
				roles[r.Sandbox] = map[string]int{}
			}
			roles[r.Sandbox][r.Role]++
			b := w.boxes[r.Sandbox]
			switch {
			case b == nil:
				f.add("sandbox "+r.Sandbox, "process %d runs (%s), and the log does not know it", r.PID, r.Role)
			case b.state.Over(), b.state.State == sandbox.Stopped:
				f.add(b.agg.Subject(), "it is %s, and process %d runs (%s)", b.state.State, r.PID, r.Role)
			case b.state.Worker != h.Worker:
				f.add(b.agg.Subject(), "it is on worker %s, and process %d runs on %s (%s)", b.state.Worker, r.PID, h.Worker, r.Role)
			}
		}
	}
	for _, b := range sorted(w.boxes) {
		if w.underWay(b) {
			f.add(b.agg.Subject(), "it is %s since %s", b.state.State, w.Taken.Sub(last(b.events).Time))
		}
		if b.state.State != sandbox.Ready || !looked[b.state.Worker] {
			continue
		}
		for _, role := range []string{evidence.RoleKeeper, evidence.RoleSentry} {
			if n := roles[b.agg.ID][role]; n != 1 {
				f.add(b.agg.Subject(), "it is ready, and has %d processes as %s", n, role)
			}
		}
	}
	return f
}
