package render

import (
	"fmt"
	"io"
	"time"
)

// progressEvery is how often a line of progress is written anew.
const progressEvery = 200 * time.Millisecond

// Progress keeps one line of a terminal up to date; on anything else it writes nothing.
type Progress struct {
	w     io.Writer
	shown bool
	last  time.Time
}

// NewProgress writes to w.
func NewProgress(w io.Writer) *Progress {
	if !Terminal(w) {
		w = nil
	}
	return &Progress{w: w}
}

// Bytes tells how far the copy of a file is; total is below 0 where it is not known.
func (p *Progress) Bytes(name string, done, total int64) {
	if p.w == nil || time.Since(p.last) < progressEvery {
		return
	}
	p.last, p.shown = time.Now(), true
	text := Bytes(uint64(max(done, 0)))
	if total > 0 {
		text = fmt.Sprintf("%s of %s (%d %%)", text, Bytes(uint64(total)), 100*done/total)
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s  %s", Clean(name), text)
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
