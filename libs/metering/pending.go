package metering

import "time"

const (
	// SampleEvery is how often a young sandbox is sampled, unless lifecycle is told otherwise.
	SampleEvery = time.Minute
	// samplesOf is the part of its uptime that an older one is not sampled for, rarest the longest such time.
	samplesOf = 20
	rarest    = time.Hour
)

// SampleAfter is how long behind a sample of a sandbox its next one is due: the older it is, the longer, so that a life of weeks has hundreds
// of them and not tens of thousands. every is that of a young one.
func SampleAfter(uptime, every time.Duration) time.Duration {
	return max(every, min(uptime/samplesOf, max(every, rarest)))
}

// Pending is what a sandbox that runs is expected to have used, beyond its last reading, when it is sampled next; where that is late, until
// now (Unix milliseconds). It is what would be billed if it failed at that moment: so the rules are those of Spans, also how much of an unseen
// time counts. last is the newest reading, a ready or a sample: of CPU that is used, of disks and network nothing is expected. false: nothing.
func Pending(last Reading, o Owner, now int64) (Span, bool) {
	if last.Kind != Ready && last.Kind != Sampled {
		return Span{}, false
	}
	due := last.At + SampleAfter(time.Duration(last.Millis)*time.Millisecond, SampleEvery).Milliseconds() //nolint:gosec // centuries
	end := last
	end.Kind, end.At = Failed, max(due, now)
	end.Millis += length(last.At, end.At)
	// The run is told as if it had begun when the sandbox was as old as the last reading says, so that this ends at the reading's time.
	begin := Reading{Kind: Ready, At: last.At - int64(last.Millis)} //nolint:gosec // centuries
	known := last
	known.Kind = Sampled
	all := Spans([]Reading{begin, known, end}, o)
	if len(all) == 0 || all[len(all)-1].From < last.At {
		return Span{}, false
	}
	return all[len(all)-1], true
}
