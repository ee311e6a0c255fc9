package check

import (
	"fmt"
	"maps"
	"slices"

	"github.com/sandtrail/sandtrail/libs/sandbox"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
)

// oneStart: an exec starts at most once, by the log and by what the programs themselves wrote.
func oneStart(w *world) []finding {
	var f findings
	for _, x := range sorted(w.runs) {
		if n := count[*eventsv1.ExecStarted](x.events); n > 1 {
			f.add(x.agg.Subject(), "the log has %d starts", n)
		}
	}
	by := w.byToken()
	for token, runs := range by {
		if len(runs) > 1 {
			f.add(runs[0].agg.Subject(), "its program %s is there as %d execs", token, len(runs))
		}
	}
	if w.Witnesses == nil {
		return f
	}
	starts := map[string]int{}
	where := map[string]string{}
	read := map[string]bool{}
	for _, wit := range w.Witnesses {
		read[wit.Sandbox] = true
		for token, n := range wit.Starts {
			if len(by[token]) == 0 && w.lostFiles(wit.Sandbox) {
				// A file of a disk that was full may hold what nobody wrote, such as the zeros of a block that was never stored.
				continue
			}
			starts[token] += n
			where[token] = wit.Sandbox
		}
	}
	for _, token := range slices.Sorted(maps.Keys(starts)) {
		name := fmt.Sprintf("program %q in sandbox %s", token, where[token])
		runs := by[token]
		if starts[token] > 1 {
			f.add(name, "it was started %d times, by its own witness", starts[token])
		}
		if len(runs) == 0 || !runs[0].state.Started() {
			f.add(name, "it was started, and the log has no start")
		}
	}
	for _, x := range sorted(w.runs) {
		witnessed := read[x.agg.Sandbox] && !w.lostFiles(x.agg.Sandbox)
		if c := x.state.Completed; x.program != nil && c.GetReason() == sandbox.ReasonExited && witnessed && starts[x.token] == 0 {
			f.add(x.agg.Subject(), "it exited, and its program left no witness of its start")
		}
	}
	return f
}

// lostFiles: the disk below the workspaces was full while the sandbox was there, so that what its programs wrote may be lost.
func (w *world) lostFiles(id string) bool {
	b := w.boxes[id]
	if b == nil {
		return false
	}
	for _, fault := range w.Faults {
		if fault.Kind == evidence.FullWorkspace && fault.At.After(b.state.CreatedAt.Add(-w.settle)) && (b.state.EndedAt.IsZero() || fault.At.Before(b.state.EndedAt)) {
			return true
		}
	}
	return false
}
