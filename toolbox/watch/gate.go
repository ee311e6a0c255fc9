package watch

import (
	"bytes"
	"encoding/json"
	"time"
)

const (
	// gather is how long changes are gathered before they are told, so that a file that is written piece by piece is one change.
	gather = 100 * time.Millisecond
	// mostGathered are told at once.
	mostGathered = 256
	// mostUnread bytes may wait for a reader; behind them changes are not told one by one.
	mostUnread = 1 << 20
	// askAfter is how long a reader who has everything may be silent before an empty line asks for him, patience how long he may leave unread
	// what is there.
	askAfter, patience = time.Minute, 10 * time.Minute
)

// gate gathers events, and lets out as many as somebody reads.
type gate struct {
	events []Event
	// last is the type of the last event of a name in events.
	last map[string]string
	// lost: there are events that are not told.
	lost bool
	// written and read are bytes of output; heard is when read grew last.
	written, read uint64
	heard         time.Time
}

func newGate(now time.Time) *gate { return &gate{last: map[string]string{}, heard: now} }

// add gathers an event. One that says what the one before of its name said is left out.
func (g *gate) add(e Event) {
	switch {
	case e.Type == Overflow:
		g.lost = true
	case g.last[e.Name] == e.Type:
	case len(g.events) == mostGathered:
		g.lost = true
	default:
		g.events = append(g.events, e)
		g.last[e.Name] = e.Type
	}
}

// waits reports whether there is something to tell, and room for it.
func (g *gate) waits() bool { return g.written-g.read < mostUnread && (g.lost || len(g.events) > 0) }

// take gives what was gathered as lines, nothing where there is no room for it.
func (g *gate) take() []byte {
	if g.written-g.read >= mostUnread {
		g.lost = g.lost || len(g.events) > 0
		g.forget()
		return nil
	}
	all := g.events
	if g.lost {
		all = append(all, Event{Name: ".", Type: Overflow})
	}
	g.lost = false
	var out bytes.Buffer
	for _, e := range all {
		line, err := json.Marshal(e)
		if err != nil {
			continue // strings always encode
		}
		out.Write(append(line, '\n'))
	}
	g.forget()
	g.written += uint64(out.Len())
	return out.Bytes()
}

func (g *gate) forget() {
	g.events = g.events[:0]
	clear(g.last)
}

// hear takes what a reader says.
func (g *gate) hear(bytes int, now time.Time) {
	g.read = min(g.read+uint64(bytes), g.written) //nolint:gosec // not negative
	g.heard = now
}

// ask gives the line that asks for a reader, where it is time to; over: there is none.
func (g *gate) ask(now time.Time) (line []byte, over bool) {
	silent := now.Sub(g.heard)
	switch {
	case g.written > g.read:
		return nil, silent > patience
	case silent > askAfter:
		g.written++
		return []byte{'\n'}, false
	}
	return nil, false
}
