package check

import (
	"slices"
	"time"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/linear"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// judgeWithin bounds the search for an order of one history of appends.
const judgeWithin = 2 * time.Minute

// oneOrder: the appends of every history happened as if one after the other, and what was acknowledged is in the log; each event
// is there once, behind the one before it, and each aggregate's digest chain is whole.
func oneOrder(w *world) []finding {
	var f findings
	first := map[string]envelope.Recorded{}
	chains := map[string][]envelope.Recorded{}
	var seq uint64
	var order []string
	for _, e := range w.events {
		if e.Seq <= seq {
			f.add(e.Subject, "event %d stands behind event %d", e.Seq, seq)
		}
		seq = e.Seq
		if was, ok := first[e.ID]; ok {
			f.add(e.Subject, "event %d has the id of event %d on %s", e.Seq, was.Seq, was.Subject)
		} else {
			first[e.ID] = e
		}
		if chains[e.Subject] == nil {
			order = append(order, e.Subject)
		}
		chains[e.Subject] = append(chains[e.Subject], e)
	}
	for _, s := range order {
		agg, err := subject.ParseEvent(s)
		if err == nil {
			err = eventlog.Verify(eventlog.History{Aggregate: agg, Events: chains[s]})
		}
		if err != nil {
			f.add(s, "%v", fault.From(err))
		}
	}
	for _, h := range w.Appends {
		v := linear.Judge(h.Calls, judgeWithin)
		for _, a := range v.Illegal {
			f.add(a, "no order explains the appends to it on %s", h.Log)
		}
		for _, a := range v.Undecided {
			f.add(a, "whether an order explains the appends to it on %s could not be found out", h.Log)
		}
		w.acknowledged(&f, h.Calls, chains)
	}
	return f
}

// acknowledged: the events of appends that were acknowledged stand in the log, where it is the one that was collected.
func (w *world) acknowledged(f *findings, calls []linear.Call, chains map[string][]envelope.Recorded) {
	if !slices.ContainsFunc(calls, func(c linear.Call) bool { return chains[c.Aggregate] != nil }) {
		return
	}
	for _, c := range calls {
		if !c.Done {
			continue
		}
		if !slices.ContainsFunc(chains[c.Aggregate], func(e envelope.Recorded) bool { return e.ID == c.ID }) {
			f.add(c.Aggregate, "event %s was acknowledged, and is not in the log", c.ID)
		}
	}
}
