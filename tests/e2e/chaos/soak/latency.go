package soak

import (
	"slices"
	"time"

	"gonum.org/v1/gonum/stat"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

// latencies adds, to each row, how long the calls took that ended since the row before: creates, and execs of programs that end at once.
func latencies(rows []Row, h journal.History) {
	for i := 1; i < len(rows); i++ {
		took := map[string][]float64{}
		for _, c := range h.Calls {
			if c.Ended.Before(rows[i-1].At) || !c.Ended.Before(rows[i].At) || c.Answer != journal.Acknowledged {
				continue
			}
			ms := float64(c.Ended.Sub(c.Began)) / float64(time.Millisecond)
			switch {
			case c.Op == journal.Create:
				took["create"] = append(took["create"], ms)
			case c.Op == journal.Exec && c.Program != nil && !c.Program.Endless && c.Program.Step == 0 && c.Program.StdoutLines <= shortProgram:
				took["exec"] = append(took["exec"], ms)
			}
		}
		for op, all := range took {
			rows[i].Figures["load."+op+"_p50_ms"] = quantile(all, 0.5)
			rows[i].Figures["load."+op+"_p99_ms"] = quantile(all, 0.99)
		}
	}
}

// shortProgram is how many lines a program writes at most whose time is the way to it and back.
const shortProgram = 4

// quantile is the value below which a part of all lies; of few values it is one of them.
func quantile(of []float64, part float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return stat.Quantile(part, stat.Empirical, sorted, nil)
}
