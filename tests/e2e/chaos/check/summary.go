package check

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

// Recovery is how long the system took to work again after one fault.
type Recovery struct {
	// Fault is the kind of fault.
	Fault string        `json:"fault"`
	Took  time.Duration `json:"took"`
}

// Summary is a run in figures.
type Summary struct {
	Seed uint64 `json:"seed"`
	// Took is from the first call to the collection.
	Took time.Duration `json:"took"`
	// Calls by op and answer; a call that was never answered counts as unanswered.
	Calls     map[journal.Op]map[string]int `json:"calls"`
	Events    int                           `json:"events"`
	Sandboxes int                           `json:"sandboxes"`
	Execs     int                           `json:"execs"`
	// Completed and Lost are ends of execs.
	Completed int `json:"completed"`
	Lost      int `json:"lost"`
	// OutputBytes are recorded, SeenBytes came to clients.
	OutputBytes uint64 `json:"output_bytes"`
	SeenBytes   uint64 `json:"seen_bytes"`
	// Starts are lines of witnesses, Appends the calls of histories of appends.
	Starts  int `json:"starts"`
	Appends int `json:"appends"`
	// LeftOver are commands that are done with and still stand in the stream.
	LeftOver int `json:"left_over"`
	// Settled is how log and hosts came to agree.
	Settled *evidence.Settling `json:"settled"`
	// Unjudged names evidence that was not collected.
	Unjudged []string `json:"unjudged,omitempty"`
	// Recovery by kind of fault.
	Recovery []Recovered `json:"recovery"`
	// Violations by invariant, with 0 where there is none.
	Violations []Count `json:"violations"`
	// First are at most MostShown of each invariant.
	First []Violation `json:"first,omitempty"`
}

// MostShown bounds the violations of one invariant that a summary shows.
const MostShown = 20

// Recovered are the recoveries from one kind of fault.
type Recovered struct {
	Fault string        `json:"fault"`
	Times int           `json:"times"`
	P50   time.Duration `json:"p50"`
	P99   time.Duration `json:"p99"`
	Max   time.Duration `json:"max"`
}

// Count is how many violations of an invariant there are.
type Count struct {
	Invariant Invariant `json:"invariant"`
	Count     int       `json:"count"`
}

// Unanswered stands for the answer of a call that has none.
const Unanswered = "unanswered"

// Summarize puts a run, what was found of it, and the recoveries from its faults into figures.
func Summarize(h journal.History, e evidence.Evidence, found []Violation, recoveries []Recovery) Summary {
	s := Summary{Seed: h.Seed, Calls: map[journal.Op]map[string]int{}, Events: len(e.Events), Settled: e.Settled, Unjudged: unjudgedParts(e)}
	if len(h.Calls) > 0 {
		s.Took = e.Taken.Sub(h.Calls[0].Began)
	}
	for _, c := range h.Calls {
		if s.Calls[c.Op] == nil {
			s.Calls[c.Op] = map[string]int{}
		}
		s.Calls[c.Op][cmp.Or(string(c.Answer), Unanswered)]++
		for _, p := range c.Seen {
			if !p.Gap {
				s.SeenBytes += p.To - p.From
			}
		}
	}
	w := newWorld(h, e)
	s.Sandboxes, s.Execs = len(w.boxes), len(w.runs)
	s.LeftOver = len(w.Pending) - len(w.waiting())
	for _, x := range w.runs {
		if x.state.Completed != nil {
			s.Completed++
		}
		if x.state.Lost != nil {
			s.Lost++
		}
	}
	for _, t := range e.Transcripts {
		s.OutputBytes += t.Stdout.Bytes - t.Stdout.Dropped + t.Stderr.Bytes - t.Stderr.Dropped
	}
	for _, wit := range e.Witnesses {
		for _, n := range wit.Starts {
			s.Starts += n
		}
	}
	for _, a := range e.Appends {
		s.Appends += len(a.Calls)
	}
	s.Recovery = recovered(recoveries)
	for _, i := range Invariants() {
		n := 0
		for _, v := range found {
			if v.Invariant != i {
				continue
			}
			if n++; n <= MostShown {
				s.First = append(s.First, v)
			}
		}
		s.Violations = append(s.Violations, Count{i, n})
	}
	return s
}

// unjudgedParts: an invariant whose evidence is missing holds for want of it, and a summary must say so.
func unjudgedParts(e evidence.Evidence) []string {
	var missing []string
	for _, part := range []struct {
		name  string
		there bool
	}{
		{"events", e.Events != nil},
		{"transcripts", e.Transcripts != nil},
		{"buckets", e.Buckets != nil},
		{"pending commands", e.Pending != nil},
		{"dead letters", e.Dead != nil},
		{"hosts", e.Hosts != nil},
		{"rows of usage", e.Execs != nil && e.Sandboxes != nil},
		{"witnesses", e.Witnesses != nil},
		{"histories of appends", e.Appends != nil},
		{"samples", e.Samples != nil},
	} {
		if !part.there {
			missing = append(missing, part.name)
		}
	}
	return missing
}

func recovered(all []Recovery) []Recovered {
	by := map[string][]time.Duration{}
	for _, r := range all {
		by[r.Fault] = append(by[r.Fault], r.Took)
	}
	out := []Recovered{}
	for _, fault := range slices.Sorted(maps.Keys(by)) {
		took := by[fault]
		slices.Sort(took)
		out = append(out, Recovered{fault, len(took), quantile(took, 50), quantile(took, 99), took[len(took)-1]})
	}
	return out
}

// quantile is the smallest of sorted values that percent of them do not exceed.
func quantile(sorted []time.Duration, percent int) time.Duration {
	return sorted[(len(sorted)*percent+99)/100-1]
}

// OK reports that nothing was found and that everything was judged.
func (s Summary) OK() bool {
	return len(s.First) == 0 && len(s.Unjudged) == 0
}

// JSON writes the summary as JSON.
func (s Summary) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(s)
}

// Text writes the summary for people.
func (s Summary) Text(to io.Writer) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "seed\t%d\n", s.Seed)
	fmt.Fprintf(w, "took\t%s\n", s.Took.Round(time.Millisecond))
	fmt.Fprintf(w, "log\t%d events: %d sandboxes, %d execs, of which %d completed and %d lost\n", s.Events, s.Sandboxes, s.Execs, s.Completed, s.Lost)
	fmt.Fprintf(w, "output\t%d bytes recorded, %d bytes seen\n", s.OutputBytes, s.SeenBytes)
	fmt.Fprintf(w, "starts\t%d by the programs' own witness\n", s.Starts)
	fmt.Fprintf(w, "appends\t%d judged for one order\n", s.Appends)
	if s.LeftOver > 0 {
		fmt.Fprintf(w, "left over\t%d commands that are done with\n", s.LeftOver)
	}
	if s.Settled != nil {
		fmt.Fprintf(w, "agreed\t%t after %s\n", s.Settled.Agreed, s.Settled.Took.Round(time.Millisecond))
	}
	for _, part := range s.Unjudged {
		fmt.Fprintf(w, "not judged\t%s\n", part)
	}
	fmt.Fprintln(w, "\ncalls\tacknowledged\trefused\tunknown\tunanswered")
	for _, op := range slices.Sorted(maps.Keys(s.Calls)) {
		n := s.Calls[op]
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\n", op, n[string(journal.Acknowledged)], n[string(journal.Refused)], n[string(journal.Unknown)], n[Unanswered])
	}
	if len(s.Recovery) > 0 {
		fmt.Fprintln(w, "\nrecovery from\ttimes\tp50\tp99\tmax")
	}
	for _, r := range s.Recovery {
		ms := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", r.Fault, r.Times, ms(r.P50), ms(r.P99), ms(r.Max))
	}
	fmt.Fprintln(w, "\ninvariant\tviolations")
	for _, v := range s.Violations {
		fmt.Fprintf(w, "%s\t%d\n", v.Invariant, v.Count)
	}
	if len(s.First) > 0 {
		fmt.Fprintln(w, "\nviolation\tof\twhat")
	}
	for _, v := range s.First {
		fmt.Fprintf(w, "%s\t%s\t%s\n", v.Invariant, v.Subject, v.Detail)
	}
	return w.Flush()
}
