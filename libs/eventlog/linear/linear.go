// Package linear judges whether appends and loads of a log happened as if one after the other, each append only behind what it
// expected. Calls are recorded by a log around the real one and judged by porcupine, then or later.
package linear

import (
	"crypto/sha256"
	"maps"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// Call is one append of one event, or one load.
type Call struct {
	Client    int    `json:"client"`
	Aggregate string `json:"aggregate"`
	// Load: it read the history, which was Events. Otherwise it is an append of the event ID behind the event After, which is empty
	// where it was to be the first.
	Load   bool     `json:"load,omitempty"`
	Events []string `json:"events,omitempty"`
	After  string   `json:"after,omitempty"`
	ID     string   `json:"id,omitempty"`
	// Began and Ended count nanoseconds from one moment that all clients of a history share.
	Began int64 `json:"began"`
	Ended int64 `json:"ended"`
	// Done: the append was acknowledged. Unknown: it may have happened, then or later. Neither: it was refused because the history
	// had another end than After.
	Done    bool `json:"done,omitempty"`
	Unknown bool `json:"unknown,omitempty"`
}

// Verdict is what was found of one history of calls.
type Verdict struct {
	// Illegal are the aggregates whose calls no order explains, Undecided those for which the time was too short; both sorted.
	Illegal, Undecided []string
}

// OK reports that every aggregate's calls were explained.
func (v Verdict) OK() bool { return len(v.Illegal) == 0 && len(v.Undecided) == 0 }

// Judge looks for an order of the calls of each aggregate, for at most within in total.
func Judge(calls []Call, within time.Duration) Verdict {
	by := map[string][]porcupine.Operation{}
	for _, c := range calls {
		by[c.Aggregate] = append(by[c.Aggregate], operation(c))
	}
	deadline := time.Now().Add(within)
	var v Verdict
	for _, aggregate := range slices.Sorted(maps.Keys(by)) {
		// A timeout of 0 means none.
		left := max(time.Until(deadline), time.Nanosecond)
		switch porcupine.CheckOperationsTimeout(model, by[aggregate], left) {
		case porcupine.Illegal:
			v.Illegal = append(v.Illegal, aggregate)
		case porcupine.Unknown:
			v.Undecided = append(v.Undecided, aggregate)
		}
	}
	return v
}

// forever is behind the end of every call: an append whose outcome is unknown may happen any time later.
const forever = int64(1) << 62

func operation(c Call) porcupine.Operation {
	ended := c.Ended
	if c.Unknown {
		ended = forever
	}
	in := input{load: c.Load, after: c.After, id: c.ID}
	for _, id := range c.Events {
		in.read = in.read.behind(id)
	}
	return porcupine.Operation{ClientId: c.Client, Input: in, Call: c.Began, Output: output{c.Done, c.Unknown}, Return: ended}
}

type (
	input struct {
		load      bool
		after, id string
		read      history
	}
	output struct{ done, unknown bool }
)

// history is a history of any length: its last event and a digest of all.
type history struct {
	last string
	all  [sha256.Size]byte
}

func (h history) behind(id string) history {
	return history{last: id, all: sha256.Sum256(append(h.all[:], id...))}
}

// model is an aggregate to which appends happen one after the other, each only behind what it expects.
var model = porcupine.Model{
	Init: func() any { return history{} },
	Step: func(state, in, out any) (bool, any) {
		s, c, r := state.(history), in.(input), out.(output)
		if c.load {
			return c.read == s, s
		}
		fits := c.after == s.last
		switch {
		case r.unknown && fits:
			return true, s.behind(c.id)
		case r.unknown:
			return true, s
		case r.done:
			return fits, s.behind(c.id)
		default:
			return !fits, s
		}
	},
	Equal: func(a, b any) bool { return a == b },
}
