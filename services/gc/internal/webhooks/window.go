package webhooks

import (
	"maps"
	"math"
	"slices"
)

// progress is how far an endpoint has been sent events, as it is stored.
type progress struct {
	// Log is the incarnation of the log that sequences belong to.
	Log string `json:"log"`
	// After: every event up to there that is wanted was delivered, or set aside.
	After uint64 `json:"after"`
	// Done are those behind it of which the same is so.
	Done []uint64 `json:"done,omitempty"`
	// Attempts are how often events that are not done have failed.
	Attempts map[uint64]int `json:"attempts,omitempty"`
	// Replayed is the sequence of the last request to replay that was carried out.
	Replayed uint64 `json:"replayed,omitempty"`
}

// window is which events are done, from the first one on that is not. What it holds is bounded by whoever reads into it.
type window struct {
	// read is through where the log was read.
	read     uint64
	open     map[uint64]bool
	done     map[uint64]bool
	attempts map[uint64]int
}

func windowOf(p progress) *window {
	w := &window{read: p.After, open: map[uint64]bool{}, done: map[uint64]bool{}, attempts: map[uint64]int{}}
	for _, seq := range p.Done {
		w.done[seq] = true
	}
	maps.Copy(w.attempts, p.Attempts)
	return w
}

// size is how many events it holds of what was read.
func (w *window) size() int {
	n := len(w.open)
	for seq := range w.done {
		if seq <= w.read {
			n++
		}
	}
	return n
}

// pass says that the log was read up to a sequence.
func (w *window) pass(seq uint64) { w.read = max(w.read, seq) }

// take says that an event is to be delivered; false: it was already.
func (w *window) take(seq uint64) bool {
	w.pass(seq)
	if w.done[seq] {
		return false
	}
	w.open[seq] = true
	return true
}

// finish says that it is.
func (w *window) finish(seq uint64) {
	if !w.open[seq] {
		return
	}
	delete(w.open, seq)
	delete(w.attempts, seq)
	w.done[seq] = true
	w.trim()
}

// trim forgets what stands in front of all that is not done.
func (w *window) trim() {
	after := w.after()
	maps.DeleteFunc(w.done, func(seq uint64, _ bool) bool { return seq <= after })
}

// fail counts a failed attempt, and gives how many there were.
func (w *window) fail(seq uint64) int {
	w.attempts[seq]++
	return w.attempts[seq]
}

// after is through where everything is done.
func (w *window) after() uint64 {
	first := uint64(math.MaxUint64)
	for seq := range w.open {
		first = min(first, seq)
	}
	// What was done in an earlier life and not read yet in this one is behind what was read.
	return min(first-1, w.read)
}

// store puts it into what is stored.
func (w *window) store(p *progress) {
	w.trim()
	p.After, p.Attempts = w.after(), maps.Clone(w.attempts)
	p.Done = slices.Sorted(maps.Keys(w.done))
}
