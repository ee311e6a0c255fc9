package audit

import (
	"fmt"
	"sync"
)

// Kind says what is wrong.
type Kind string

const (
	// Altered: the event is not what was appended there.
	Altered Kind = "altered"
	// Removed: events are not there.
	Removed Kind = "removed"
	// Inserted: the event was not appended there.
	Inserted Kind = "inserted"
	// Reordered: the event stands at another place than where it was appended.
	Reordered Kind = "reordered"
	// Broken: the event does not follow from those before it; it was altered or they were removed, and nothing that was signed tells which.
	Broken Kind = "broken"
	// Foreign: the message is no event, or one of another tenant than its subject's.
	Foreign Kind = "foreign"
	// Diverged: events in the range are others than those that were signed, and each aggregate's chain is whole.
	Diverged Kind = "diverged"
	// Forged: a checkpoint that none of the given keys has signed, or that contradicts itself.
	Forged Kind = "forged"
	// Forked: another history than this one was signed.
	Forked Kind = "forked"
	// Truncated: the end is missing.
	Truncated Kind = "truncated"
	// Unsigned: no checkpoint covers anything.
	Unsigned Kind = "unsigned"
	// Segment and Manifest: a file of an export is not what was exported.
	Segment  Kind = "segment"
	Manifest Kind = "manifest"
)

// Kinds are all kinds, in the order in which they are explained.
func Kinds() []Kind {
	return []Kind{Altered, Removed, Inserted, Reordered, Broken, Foreign, Diverged, Forged, Forked, Truncated, Unsigned, Segment, Manifest}
}

// Finding is one thing that is wrong and where it is.
type Finding struct {
	Kind Kind `json:"kind"`
	// Subject of the aggregate; "" where it cannot be known, or where it is no aggregate's.
	Subject string `json:"subject,omitempty"`
	// From and To are stream sequences, both included; 0 where it is about no event.
	From uint64 `json:"from,omitempty"`
	To   uint64 `json:"to,omitempty"`
	// File of an export.
	File string `json:"file,omitempty"`
	// What is a sentence for people; it quotes nothing of an event.
	What string `json:"what"`
}

// Where is the place in words.
func (f Finding) Where() string {
	switch {
	case f.File != "":
		return f.File
	case f.From == 0:
		return ""
	case f.To > f.From:
		return fmt.Sprintf("%d to %d", f.From, f.To)
	default:
		return fmt.Sprint(f.From)
	}
}

// MaxFindings bounds the findings of a report; all are counted.
const MaxFindings = 1000

// findings are those of one run. The reader of an export adds to them while events are checked.
type findings struct {
	mu    sync.Mutex
	list  []*Finding
	total map[Kind]int
}

func (f *findings) add(x Finding) *Finding {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.total == nil {
		f.total = map[Kind]int{}
	}
	f.total[x.Kind]++
	if len(f.list) < MaxFindings {
		f.list = append(f.list, &x)
	}
	return &x
}

// rename makes another kind of a finding that is now understood better.
func (f *findings) rename(x *Finding, k Kind, what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.total[x.Kind]--; f.total[x.Kind] == 0 {
		delete(f.total, x.Kind)
	}
	f.total[k]++
	x.Kind, x.What = k, what
}
