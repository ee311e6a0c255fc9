package audit

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/sandtrail/sandtrail/libs/envelope"
)

// Bounds of what is not yet understood. Beyond them an event that does not follow stays Broken or becomes Altered or Removed by what was
// signed, without a look at its successor.
const (
	maxBreaks     = 4096
	maxBreakBytes = 256 << 10
)

// brokenEvent is an event that does not follow from the one before it. What follows it tells why.
type brokenEvent struct {
	finding *Finding
	// computed is the digest that the event has behind the one before it.
	computed [32]byte
	// head and data are those of the event; data is nil where it is not kept.
	head envelope.Head
	data []byte
	// known: its kind is settled.
	known bool
}

// broke takes an event that does not follow from the one before it in its aggregate, which slot is.
func (v *Verifier) broke(slot head, e *Entry, h *envelope.Head, stored []byte) {
	prior, previous := slot.seq(), slot.digest()
	if prior == 0 {
		previous = nil
	}
	v.follows(previous, h, e.Data, stored)
	b := &brokenEvent{computed: v.sum}
	switch {
	case prior != 0 && string(stored) == string(slot.digest()):
		b.finding, b.known = v.found.add(Finding{Inserted, e.Subject, e.Seq, e.Seq, "", fmt.Sprintf("it repeats event %d", prior)}), true
	case slot.prior() != 0 && v.follows(slot.before(), h, e.Data, stored):
		v.found.add(Finding{Inserted, e.Subject, prior, prior, "", fmt.Sprintf("event %d follows from the one before it: it was put in between them", e.Seq)})
		v.explained = true
		return
	case prior != 0 && slot.prior() == 0 && v.follows(nil, h, e.Data, stored):
		v.found.add(Finding{Inserted, e.Subject, prior, prior, "", fmt.Sprintf("event %d is the history's first: it was put in before it", e.Seq)})
		v.explained = true
		return
	default:
		if h := v.hole(prior, e.Seq); h != nil {
			what := fmt.Sprintf("an event that stood before event %d of the same aggregate is missing", e.Seq)
			if h.free--; h.Subject == "" {
				h.Subject, h.What = e.Subject, what
			} else {
				v.found.add(Finding{Removed, e.Subject, h.From, h.To, "", what})
			}
			return
		}
		b.finding = v.found.add(Finding{Broken, e.Subject, e.Seq, e.Seq, "", "it does not follow from the events before it: it was altered, or what stood before it was removed"})
	}
	if len(v.open) < maxBreaks {
		v.open = append(v.open, b)
	}
	if len(v.breaks) < maxBreaks && len(e.Data) < maxBreakBytes {
		b.head, b.data = *h, e.Data
		v.breaks[e.Subject] = b
	}
}

// hole is where sequences are missing; free of them are not yet known to have belonged to an aggregate.
type hole struct {
	*Finding
	free uint64
}

// hole gives one between two events, nil without any.
func (v *Verifier) hole(after, before uint64) *hole {
	for i := len(v.holes) - 1; i >= 0; i-- {
		if h := v.holes[i]; h.From > after && h.To < before && h.free > 0 {
			return h
		}
	}
	return nil
}

// after takes the event behind a broken one of the same aggregate, which tells what the broken one is. true: it has moved the head.
func (v *Verifier) after(b *brokenEvent, slot head, e *Entry, h *envelope.Head, stored []byte, follows bool) bool {
	delete(v.breaks, e.Subject)
	before := slot.before()
	if slot.prior() == 0 {
		before = nil
	}
	switch {
	case follows:
		// The broken one has the digest that it was appended with; checkpoints tell the rest.
	case v.follows(before, h, e.Data, stored):
		b.known, v.explained = true, true
		own := append([]byte(nil), slot.digest()...)
		if !v.follows(stored, &b.head, b.data, own) {
			v.found.rename(b.finding, Inserted, fmt.Sprintf("event %d follows from the one before it: it was put in between them", e.Seq))
			return false
		}
		v.found.rename(b.finding, Reordered, fmt.Sprintf("it follows from event %d, which stands behind it", e.Seq))
		// What comes next follows from the two as if they stood in their order.
		slot.move(e.Seq, stored)
		slot.move(e.Seq, own)
		return true
	case v.follows(b.computed[:], h, e.Data, stored):
		b.known, v.explained = true, true
		v.found.rename(b.finding, Altered, "its digest is not the one that the next event covers")
	default:
		v.broke(slot, e, h, stored)
	}
	return false
}

// settle says what broken events up to a sequence are, from whether the signed tree has their digests at their places.
func (v *Verifier) settle(to uint64, fits bool) {
	rest := v.open[:0]
	for _, b := range v.open {
		switch {
		case b.finding.From > to:
			rest = append(rest, b)
		case b.known:
		case fits:
			v.found.rename(b.finding, Altered, "its digest is the one that was signed, its content is not")
		default:
			v.found.rename(b.finding, Removed, "it does not follow from the events before it, and the signed tree has others: one of them was removed, or this one replaced")
			v.explained = true
		}
	}
	v.open = rest
}

// checkpoint compares what was signed with what stands before it.
func (v *Verifier) checkpoint(e *Entry) {
	c, err := OpenEvent(e, v.o.Keys)
	if err == nil && v.r.LogID != "" && v.r.LogID != c.LogID {
		err = errors.New("it is of another log than the ones before it")
	}
	if err != nil {
		v.found.add(Finding{Forged, e.Subject, e.Seq, e.Seq, "", err.Error()})
		return
	}
	v.r.LogID = c.LogID
	if c.Size >= e.Seq {
		v.settle(e.Seq, false)
		if !v.short {
			v.found.add(Finding{Removed, "", v.since, e.Seq - 1, "", fmt.Sprintf("a checkpoint covers %d events and stands at %d: some before it are missing", c.Size, e.Seq)})
		}
		v.short, v.whole, v.explained = true, false, true
		return
	}
	if c.Size < v.treeTo() {
		return // it came too late to be compared; the next one covers the same
	}
	v.advance(v.last - c.Size)
	fits := v.whole && bytes.Equal(v.tree.root(), c.Root)
	v.settle(c.Size, fits)
	switch {
	case fits:
		v.r.Checkpoints++
		v.r.SignedTo = c.Size
		v.explained = false
	case v.explained:
		v.explained = false
	case v.apart != nil && v.apart.To+1 == v.since:
		v.apart.To = c.Size
	default:
		v.apart = v.found.add(Finding{Diverged, "", v.since, c.Size, "", "the events are others than those that were signed, or stand at other places"})
	}
	v.since = c.Size + 1
	if t, err := treeOf(c.Size, c.Range); err == nil && !fits {
		v.tree, v.whole = t, true
	}
}
