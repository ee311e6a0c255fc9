package check

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"

	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

var streams = []string{"stdout", "stderr"}

// trueOutput: what a client saw is a prefix of what is recorded, which is byte for byte what the program wrote; or it is said what
// is missing, with counts that add up.
func trueOutput(w *world) []finding {
	if w.Transcripts == nil {
		return nil
	}
	var f findings
	for _, x := range sorted(w.runs) {
		chunks := x.recorded(&f)
		x.inPlace(&f, chunks)
		x.written(&f, chunks)
		x.counted(&f, chunks)
		for _, c := range x.calls {
			x.seen(&f, c, chunks)
		}
	}
	for _, t := range w.Transcripts {
		if _, ok := w.runs[t.Exec]; !ok {
			f.add("exec "+t.Exec, "it has recorded output, and the log does not know it")
		}
	}
	return f
}

// recorded are the chunks of an exec in their order, each number once.
func (x *run) recorded(f *findings) []journal.Piece {
	if x.out == nil {
		return nil
	}
	sorted := slices.Clone(x.out.Chunks)
	slices.SortStableFunc(sorted, func(a, b journal.Piece) int { return cmp.Compare(a.Number, b.Number) })
	var out []journal.Piece
	for _, c := range sorted {
		if n := len(out); n > 0 && out[n-1].Number == c.Number {
			if out[n-1] != c {
				f.add(x.agg.Subject(), "chunk %d is recorded twice, and not the same", c.Number)
			}
			continue
		}
		out = append(out, c)
	}
	return out
}

// inPlace: the chunks have the numbers from 1 on, and each goes on where the one before it on its stream ended.
func (x *run) inPlace(f *findings, chunks []journal.Piece) {
	end := map[string]uint64{}
	for i, c := range chunks {
		if c.Number != uint64(i+1) {
			f.add(x.agg.Subject(), "chunk %d is recorded behind %d chunks", c.Number, i)
			return
		}
		if c.From != end[c.Stream] || c.To < c.From {
			f.add(x.agg.Subject(), "chunk %d of %s has %d to %d, behind %d", c.Number, c.Stream, c.From, c.To, end[c.Stream])
			return
		}
		end[c.Stream] = c.To
	}
}

// written: the recorded bytes are those of the program, and all of them where it ended by itself.
func (x *run) written(f *findings, chunks []journal.Piece) {
	if x.program == nil {
		return
	}
	for _, stream := range streams {
		whole := x.program.Output(stream)
		var end uint64
		for _, c := range chunks {
			if c.Stream != stream {
				continue
			}
			end = c.To
			if c.To > uint64(len(whole)) || c.From > c.To {
				f.add(x.agg.Subject(), "chunk %d has %s up to %d, and the program writes %d", c.Number, stream, c.To, len(whole))
				break
			}
			if !c.Gap && c.SHA256 != digest(whole[c.From:c.To]) {
				f.add(x.agg.Subject(), "chunk %d of %s, %d to %d, is not what the program writes there", c.Number, stream, c.From, c.To)
			}
		}
		if x.endedItself() && end != uint64(len(whole)) {
			f.add(x.agg.Subject(), "%d bytes of %s are recorded, and the program wrote %d", end, stream, len(whole))
		}
	}
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// counted: the end tells the numbers, gaps and digests of what is recorded.
func (x *run) counted(f *findings, chunks []journal.Piece) {
	c, l := x.state.Completed, x.state.Lost
	if c == nil && l == nil {
		return
	}
	end, dropped, gaps := map[string]uint64{}, map[string]uint64{}, map[string][]*eventsv1.Gap{}
	var number uint64
	for _, p := range chunks {
		number = max(number, p.Number)
		end[p.Stream] = max(end[p.Stream], p.To)
		if p.Gap {
			dropped[p.Stream] += p.To - p.From
			gaps[p.Stream] = append(gaps[p.Stream], &eventsv1.Gap{From: p.From, To: p.To})
		}
	}
	said := cmp.Or(c.GetLastChunk(), l.GetLastChunk())
	if said != number && !(x.sealedBehind(chunks) && number == said+1) {
		f.add(x.agg.Subject(), "its end says %d chunks, and %d are recorded", said, number)
	}
	if l != nil {
		for stream, n := range map[string]uint64{"stdout": l.GetStdoutBytes(), "stderr": l.GetStderrBytes()} {
			if n != end[stream] {
				f.add(x.agg.Subject(), "it is lost behind %d bytes of %s, and %d are recorded", n, stream, end[stream])
			}
		}
		return
	}
	for stream, o := range map[string]*eventsv1.Output{"stdout": c.GetStdout(), "stderr": c.GetStderr()} {
		if o.GetBytes() != end[stream] || o.GetDroppedBytes() != dropped[stream] {
			f.add(x.agg.Subject(), "its end says %d bytes of %s and %d dropped, recorded are %d and %d",
				o.GetBytes(), stream, o.GetDroppedBytes(), end[stream], dropped[stream])
		}
		if !sameGaps(o.GetGaps(), gaps[stream]) {
			f.add(x.agg.Subject(), "its end tells other gaps of %s than are recorded", stream)
		}
		if have := hex.EncodeToString(o.GetSha256()); o.GetBytes() > 0 && have != x.kept(stream) {
			f.add(x.agg.Subject(), "the digest of %s in its end is not that of what is recorded", stream)
		}
	}
}

// mostGaps is how many gaps an end lists; further ones are counted only.
const mostGaps = 64

// sameGaps compares what is missing, in however many pieces it was told.
func sameGaps(said, recorded []*eventsv1.Gap) bool {
	said, recorded = joined(said), joined(recorded)
	if len(said) == mostGaps && len(recorded) > mostGaps {
		recorded = recorded[:mostGaps]
	}
	return slices.EqualFunc(said, recorded, func(a, b *eventsv1.Gap) bool { return a.GetFrom() == b.GetFrom() && a.GetTo() == b.GetTo() })
}

// joined are gaps of which none begins where another ends.
func joined(gaps []*eventsv1.Gap) []*eventsv1.Gap {
	var out []*eventsv1.Gap
	for _, g := range gaps {
		if n := len(out); n > 0 && out[n-1].GetTo() == g.GetFrom() {
			out[n-1] = &eventsv1.Gap{From: out[n-1].GetFrom(), To: g.GetTo()}
			continue
		}
		out = append(out, g)
	}
	return out
}

// sealedBehind: the last chunk is without bytes and behind what the end counts. Somebody was about to record a loss, and made the output
// final for it, when the end was recorded as it was seen.
func (x *run) sealedBehind(chunks []journal.Piece) bool {
	n := len(chunks)
	return n > 0 && x.state.Completed != nil && x.state.Completed.GetLastChunk() == uint64(n-1) && !chunks[n-1].Gap && chunks[n-1].From == chunks[n-1].To
}

// kept is the digest of the bytes of a stream that are recorded.
func (x *run) kept(stream string) string {
	switch {
	case x.out == nil:
		return ""
	case stream == "stderr":
		return x.out.Stderr.SHA256
	default:
		return x.out.Stdout.SHA256
	}
}

// seen: a client saw recorded chunks, one behind the other from where it asked on, and all of them where it was told the end.
func (x *run) seen(f *findings, c journal.Call, chunks []journal.Piece) {
	next := c.After + 1
	for _, p := range c.Seen {
		if p.Number != next {
			f.add(x.agg.Subject(), "call %d saw chunk %d where chunk %d was next", c.Number, p.Number, next)
			return
		}
		next++
		if p.Number > uint64(len(chunks)) {
			f.add(x.agg.Subject(), "call %d saw chunk %d, which is not recorded", c.Number, p.Number)
			return
		}
		if chunks[p.Number-1] != p {
			f.add(x.agg.Subject(), "call %d saw another chunk %d than is recorded", c.Number, p.Number)
			return
		}
	}
	if c.End != nil && next != uint64(len(chunks))+1 && !(x.sealedBehind(chunks) && next == uint64(len(chunks))) {
		f.add(x.agg.Subject(), "call %d was told the end behind chunk %d of %d", c.Number, next-1, len(chunks))
	}
	if e := c.End; e != nil && !e.Lost && x.state.Completed != nil {
		for stream, pair := range map[string]struct {
			told     journal.Digest
			recorded *eventsv1.Output
		}{"stdout": {e.Stdout, x.state.Completed.GetStdout()}, "stderr": {e.Stderr, x.state.Completed.GetStderr()}} {
			want := journal.Digest{Bytes: pair.recorded.GetBytes(), Dropped: pair.recorded.GetDroppedBytes()}
			if want.Bytes > 0 {
				want.SHA256 = hex.EncodeToString(pair.recorded.GetSha256())
			}
			if pair.told != want {
				f.add(x.agg.Subject(), "call %d was told another digest of %s than is recorded", c.Number, stream)
			}
		}
	}
}
