// Package check judges a run: pure functions from what the clients saw (journal) and what was left behind (evidence) to what
// must not be.
package check

import (
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

// Invariant is one property of every run.
type Invariant string

// Invariants.
const (
	// OneOutcome: an acknowledged command has exactly one outcome.
	OneOutcome Invariant = "a one outcome"
	// OneStart: an exec starts at most once.
	OneStart Invariant = "b one start"
	// TrueOutput: what a client saw is a prefix of what is recorded, and that is what the program wrote, or it is said what is missing.
	TrueOutput Invariant = "c true output"
	// TrueEnd: no exit code is invented.
	TrueEnd Invariant = "d true end"
	// SameLife: a sandbox in the log has its process or has ended, and the other way round.
	SameLife Invariant = "e same life"
	// NoLeak: nothing remains of what was destroyed.
	NoLeak Invariant = "f no leak"
	// SameViews: views and rows equal a replay of the log.
	SameViews Invariant = "g same views"
	// OneOrder: appends are linearizable and digest chains unbroken.
	OneOrder Invariant = "h one order"
	// WithinLimits: quotas and capacity are never exceeded, and free again.
	WithinLimits Invariant = "i within limits"
)

// Invariants in their order.
func Invariants() []Invariant {
	return []Invariant{OneOutcome, OneStart, TrueOutput, TrueEnd, SameLife, NoLeak, SameViews, OneOrder, WithinLimits}
}

// Violation is one thing that must not be.
type Violation struct {
	Invariant Invariant `json:"invariant"`
	// Subject is the aggregate's, or the name of what was found.
	Subject string `json:"subject"`
	Detail  string `json:"detail"`
}

// All judges a run by every invariant. The result is empty where everything holds, and in the order of the invariants.
func All(h journal.History, e evidence.Evidence) []Violation {
	var all []Violation
	for _, judge := range judges {
		all = append(all, judge(h, e)...)
	}
	return all
}

// judges are in the order of the invariants.
var judges []func(journal.History, evidence.Evidence) []Violation
