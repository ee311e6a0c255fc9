// Package check judges a run: pure functions from what the clients saw (journal) and what was left behind (evidence) to what
// must not be.
package check

import (
	"fmt"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

// Invariant is one property of every run.
type Invariant string

// Invariants.
const (
	// OneOutcome: an acknowledged command has exactly one outcome, a refused one has none.
	OneOutcome Invariant = "a one outcome"
	// OneStart: an exec starts at most once.
	OneStart Invariant = "b one start"
	// TrueOutput: what a client saw is a prefix of what is recorded, and that is what the program wrote, or it is said what is missing.
	TrueOutput Invariant = "c true output"
	// TrueEnd: no exit code is invented.
	TrueEnd Invariant = "d true end"
	// SameLife: a sandbox in the log has its process or has ended, and the other way round.
	SameLife Invariant = "e same life"
	// NoLeak: nothing remains of what was destroyed, and nothing that was to be kept is gone.
	NoLeak Invariant = "f no leak"
	// SameViews: views and rows equal a replay of the log.
	SameViews Invariant = "g same views"
	// OneOrder: appends are linearizable, events are there once and digest chains unbroken.
	OneOrder Invariant = "h one order"
	// WithinLimits: quotas and capacity are never exceeded, and free again.
	WithinLimits Invariant = "i within limits"
)

// judges by invariant, in the order of the invariants.
var judges = []struct {
	invariant Invariant
	judge     func(*world) []finding
}{
	{OneOutcome, oneOutcome},
	{OneStart, oneStart},
	{TrueOutput, trueOutput},
	{TrueEnd, trueEnd},
	{SameLife, sameLife},
	{NoLeak, noLeak},
	{SameViews, sameViews},
	{OneOrder, oneOrder},
	{WithinLimits, withinLimits},
}

// Invariants in their order.
func Invariants() []Invariant {
	var all []Invariant
	for _, j := range judges {
		all = append(all, j.invariant)
	}
	return all
}

// Violation is one thing that must not be.
type Violation struct {
	Invariant Invariant `json:"invariant"`
	// Subject is the aggregate's, or the name of what was found.
	Subject string `json:"subject"`
	Detail  string `json:"detail"`
}

// All judges a run by every invariant. The result is empty where everything holds, and in the order of the invariants. Evidence
// that was not collected is not judged.
func All(h journal.History, e evidence.Evidence) []Violation {
	w := newWorld(h, e)
	var all []Violation
	for _, j := range judges {
		for _, f := range j.judge(w) {
			all = append(all, Violation{Invariant: j.invariant, Subject: f.subject, Detail: f.detail})
		}
	}
	return all
}

// Open names what log, hosts, views and rows do not agree about yet, for evidence.Collect: what may lag behind the log for a
// moment and must not for longer.
func Open(e evidence.Evidence) []string {
	w := newWorld(journal.History{}, e)
	var open []string
	for _, judge := range []func(*world) []finding{unsettled, sameLife, noLeak, sameViews, freeAgain} {
		for _, f := range judge(w) {
			open = append(open, f.subject+": "+f.detail)
		}
	}
	return open
}

// finding is a violation of the invariant that is being judged.
type finding struct{ subject, detail string }

// findings of one judge.
type findings []finding

func (f *findings) add(subject, format string, args ...any) {
	*f = append(*f, finding{subject, fmt.Sprintf(format, args...)})
}
