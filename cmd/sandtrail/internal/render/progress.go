package render

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// progressEvery is how often a line of progress is written anew.
const progressEvery = 200 * time.Millisecond

// Progress keeps one line of a terminal up to date; on anything else it writes nothing.
type Progress struct {
	w     io.Writer
	shown bool
	last  time.Time
	// began is when the present copy did, done how far it is.
	began time.Time
	done  int64
}

// NewProgress writes to w.
func NewProgress(w io.Writer) *Progress {
	if !Terminal(w) {
		w = nil
	}
	return &Progress{w: w}
}

// barWidth is how many characters a bar has.
const barWidth = 24

// Bytes tells how far the copy of a file is; total is below 0 where it is not known. A copy begins with its first call.
func (p *Progress) Bytes(name string, done, total int64) {
	if p.w == nil {
		return
	}
	if done < p.done || p.began.IsZero() {
		p.began = time.Now()
	}
	p.done = done
	if time.Since(p.last) < progressEvery {
		return
	}
	p.last, p.shown = time.Now(), true
	fmt.Fprintf(p.w, "\r\x1b[K%s  %s", Clean(name), moved(done, total, time.Since(p.began)))
}

// moved is a bar, how much is done, how fast that was, and when it is over if it goes on so.
func moved(done, total int64, took time.Duration) string {
	text := Bytes(uint64(max(done, 0)))
	if total > 0 {
		share := min(done, total) * 100 / total
		full := int(share) * barWidth / 100
		text = fmt.Sprintf("[%s%s] %3d %%  %s of %s", strings.Repeat("#", full), strings.Repeat("-", barWidth-full), share, text, Bytes(uint64(total)))
	}
	if took < time.Second || done <= 0 {
		return text
	}
	rate := float64(done) / took.Seconds()
	text += fmt.Sprintf("  %s/s", Bytes(uint64(rate)))
	if total > done {
		text += "  " + Duration(time.Duration(float64(total-done)/rate*float64(time.Second)).Round(time.Second)) + " left"
	}
	return text
}

// Count tells how many of something are done.
func (p *Progress) Count(name string, done, total uint64) {
	if p.w == nil || time.Since(p.last) < progressEvery {
		return
	}
	p.last, p.shown = time.Now(), true
	fmt.Fprintf(p.w, "\r\x1b[K%s  %d of %d", Clean(name), done, total)
}

// Step tells what is being done that has no number.
func (p *Progress) Step(name string) {
	if p.w == nil {
		return
	}
	p.shown = true
	fmt.Fprintf(p.w, "\r\x1b[K%s", Clean(name))
}

// Clear takes the line away.
func (p *Progress) Clear() {
	if p.w != nil && p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

// Events tells how far something is that reads the log, by stream sequences; to is 0 where the end is not known.
func (p *Progress) Events(name string, seq, to uint64) {
	if p.w == nil || time.Since(p.last) < progressEvery {
		return
	}
	p.last, p.shown = time.Now(), true
	text := fmt.Sprintf("%d", seq)
	if to > 0 {
		text = fmt.Sprintf("%d of %d (%d %%)", seq, to, 100*min(seq, to)/to)
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s  %s", Clean(name), text)
}
