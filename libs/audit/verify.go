package audit

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/sandtrail/sandtrail/libs/envelope"
)

// Options of a verification.
type Options struct {
	// Keys whose signatures count. Without any, checkpoints are compared with the log and signatures are not checked.
	Keys Keys
	// Known are checkpoints that were kept outside of the log, opened: the log must still hold what they cover.
	Known []Checkpoint
	// LastSeq is how far the log says that it goes; 0 where it does not say.
	LastSeq uint64
	// Dir is where a large table of aggregates may lie; "" is the system's directory for temporary files.
	Dir string
	// Progress is told now and then up to which sequence was read.
	Progress func(seq uint64)
}

// Report is what a verification has found.
type Report struct {
	Events     uint64 `json:"events"`
	Aggregates uint64 `json:"aggregates"`
	// LogID is that of the checkpoints; "" without any.
	LogID string `json:"log_id,omitempty"`
	// LastSeq is the sequence of the last event.
	LastSeq uint64 `json:"last_sequence"`
	// Checkpoints that fit; SignedTo is the last sequence that one of them covers, Unsigned how many events stand behind it.
	Checkpoints uint64 `json:"checkpoints"`
	SignedTo    uint64 `json:"signed_to"`
	Unsigned    uint64 `json:"unsigned_events"`
	// SignaturesChecked: keys were given.
	SignaturesChecked bool `json:"signatures_checked"`
	// Findings are the first MaxFindings of all, which Total counts by kind.
	Findings []*Finding   `json:"findings"`
	Total    map[Kind]int `json:"total"`
}

// OK reports whether nothing is wrong.
func (r Report) OK() bool { return len(r.Total) == 0 }

// maxLate is how many leaves a checkpoint may stand behind what it covers and still be compared: 8 MiB of them.
const maxLate = 1 << 18

// Verifier checks a log event by event. Its memory does not grow with the log: some MiB of leaves, a table of aggregates that the
// system may write out, and what is not yet understood, which is bounded.
type Verifier struct {
	o     Options
	found findings
	r     Report
	heads *heads
	// tree covers what lies before leaves; it is not whole where a leaf was missing and nothing signed has replaced it since.
	tree   *tree
	whole  bool
	leaves queue
	// late is maxLate.
	late uint64
	// last sequence.
	last uint64
	// holes are where sequences are missing, newest last.
	holes []*hole
	// breaks are events that do not follow from the one before them and whose successors have not come, by subject; open those that
	// no checkpoint has covered yet, in order.
	breaks map[string]*brokenEvent
	open   []*brokenEvent
	// since is the first sequence that no checkpoint has been compared for; explained: what was found there explains another root.
	since     uint64
	explained bool
	// short: a checkpoint was found that covers more than stands before it. apart is the last finding of a range that diverged.
	short bool
	apart *Finding
	// scratch and sum are for digests.
	scratch []byte
	sum     [32]byte
}

// NewVerifier begins at the log's first event. Close ends it.
func NewVerifier(o Options) *Verifier {
	o.Known = slices.Clone(o.Known)
	slices.SortFunc(o.Known, func(a, b Checkpoint) int {
		return compare(a.Size, b.Size)
	})
	return &Verifier{
		o: o, heads: newHeads(o.Dir), tree: newTree(), whole: true, late: maxLate, breaks: map[string]*brokenEvent{}, since: 1,
		r: Report{SignaturesChecked: len(o.Keys) > 0},
	}
}

func compare(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Close gives its memory back.
func (v *Verifier) Close() { v.heads.close() }

// Found adds what the reader of an export has found itself; it may be called while Add is.
func (v *Verifier) Found(f Finding) { v.found.add(f) }

// Add takes the next event. An error: there is no room for the table of aggregates.
func (v *Verifier) Add(e *Entry) error {
	head := envelope.ReadHead(e.Headers)
	if !v.place(e) {
		return nil
	}
	v.r.Events++
	v.leaves.push(Leaf(e.Seq, e.Subject, head.Digest))
	if err := v.chain(e, &head); err != nil {
		return err
	}
	if isCheckpoint(e.Subject) {
		v.checkpoint(e)
	}
	v.advance(v.late)
	if v.o.Progress != nil && v.r.Events&0xfff == 0 {
		v.o.Progress(v.last)
	}
	return nil
}

// place looks at the sequence; false: the event stands where it cannot be looked at.
func (v *Verifier) place(e *Entry) bool {
	switch {
	case e.Seq <= v.last:
		v.found.add(Finding{Reordered, e.Subject, e.Seq, e.Seq, "", fmt.Sprintf("stands behind sequence %d", v.last)})
		v.explained = true
		return false
	case e.Seq > v.last+1:
		h := &hole{Finding: v.found.add(Finding{Removed, "", v.last + 1, e.Seq - 1, "", "no event stands there"})}
		h.free = h.To - h.From + 1
		if len(v.holes) < MaxFindings {
			v.holes = append(v.holes, h)
		}
		v.explained = true
		v.skip(h.free)
	}
	v.last = e.Seq
	return true
}

// chain checks that the event follows from the one before it in its aggregate.
func (v *Verifier) chain(e *Entry, h *envelope.Head) error {
	var stored [32]byte
	if n, err := hex.Decode(stored[:], []byte(h.Digest[:min(len(h.Digest), 64)])); err != nil || n != 32 || len(h.Digest) != 64 || h.ID == "" || h.Type == "" {
		v.foreign(e, "it is no event: no id, type or digest")
		return nil
	}
	if tenantOf(e.Subject) != h.Tenant {
		v.foreign(e, "its tenant is not that of its subject")
	}
	slot, err := v.heads.of(e.Subject)
	if err != nil {
		return err
	}
	previous := slot.digest()
	if slot.seq() == 0 {
		previous = nil
	}
	follows := v.follows(previous, h, e.Data, stored[:])
	moved := false
	if b := v.breaks[e.Subject]; b != nil {
		moved = v.after(b, slot, e, h, stored[:], follows)
	} else if !follows {
		v.broke(slot, e, h, stored[:])
	}
	if !moved {
		slot.move(e.Seq, stored[:])
	}
	return nil
}

// tenantOf is the second token of a subject.
func tenantOf(s string) string {
	_, rest, _ := strings.Cut(s, ".")
	tenant, _, _ := strings.Cut(rest, ".")
	return tenant
}

func (v *Verifier) foreign(e *Entry, what string) {
	v.found.add(Finding{Foreign, e.Subject, e.Seq, e.Seq, "", what})
	v.explained = true
}

func (v *Verifier) follows(previous []byte, h *envelope.Head, data, digest []byte) bool {
	v.sum, v.scratch = h.Chain(v.scratch, previous, data)
	return bytes.Equal(v.sum[:], digest)
}

// skip leaves out leaves that are missing: the tree goes on from the next signed range.
func (v *Verifier) skip(n uint64) {
	if n > v.late {
		v.advance(0)
		v.last += n
		v.whole = false
		return
	}
	for range n {
		v.last++
		v.leaves.push(nil)
	}
}

// advance moves leaves into the tree until so many are left, and compares what is known at each size.
func (v *Verifier) advance(left uint64) {
	for v.leaves.len() > left {
		leaf := v.leaves.pop()
		if v.whole = v.whole && leaf != nil; v.whole {
			v.tree.add(leaf, nil)
		}
		v.known()
	}
}

// treeTo is how far the tree reaches, or would.
func (v *Verifier) treeTo() uint64 { return v.last - v.leaves.len() }

// known compares the checkpoints that were kept outside, once the tree is as large as they are.
func (v *Verifier) known() {
	for len(v.o.Known) > 0 && v.o.Known[0].Size <= v.treeTo() {
		c := v.o.Known[0]
		v.o.Known = v.o.Known[1:]
		if c.Size != v.treeTo() || !v.whole || !bytes.Equal(c.Root, v.tree.root()) {
			v.found.add(Finding{Forked, "", 1, c.Size, "", fmt.Sprintf("a checkpoint that was kept elsewhere covers %d events, and they are not these", c.Size)})
		}
	}
}

// Finish gives the report; nothing may be added then.
func (v *Verifier) Finish() Report {
	v.advance(0)
	end := v.last
	for _, c := range v.o.Known {
		v.found.add(Finding{Truncated, "", v.last + 1, c.Size, "", fmt.Sprintf("a checkpoint that was kept elsewhere covers %d events, and the log ends at %d", c.Size, v.last)})
		end = max(end, c.Size)
	}
	if v.o.LastSeq > end {
		v.found.add(Finding{Truncated, "", v.last + 1, v.o.LastSeq, "", fmt.Sprintf("the log says that it goes to %d", v.o.LastSeq)})
	}
	if v.r.Events > 0 && v.r.SignaturesChecked && v.r.Checkpoints == 0 {
		v.found.add(Finding{Unsigned, "", 1, v.last, "", "no checkpoint that fits is signed by any of the given keys"})
	}
	v.r.Aggregates, v.r.LastSeq, v.r.Unsigned = v.heads.n, v.last, v.last-v.r.SignedTo
	v.r.Findings, v.r.Total = v.found.list, v.found.total
	slices.SortStableFunc(v.r.Findings, func(a, b *Finding) int { return compare(a.From, b.From) })
	return v.r
}

// Late adds what was found behind the end, and gives the report anew.
func (v *Verifier) Late(f Finding) Report {
	v.found.add(f)
	v.r.Findings, v.r.Total = v.found.list, v.found.total
	return v.r
}

// Verify checks everything that a source gives. An error says that it could not be read to its end; what is wrong with it is in the report.
func Verify(ctx context.Context, s Source, v *Verifier) (Report, error) {
	if err := Each(ctx, readAhead(ctx, s), v.Add); err != nil {
		return v.r, err
	}
	return v.Finish(), nil
}
