package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
	"unicode/utf8"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/pause"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// player gives events on at the pace at which they were recorded.
type player struct {
	ctx   context.Context
	speed float64
	most  time.Duration
	next  func(*computev1.ExecEvent) error
	// last is when the last one was recorded, due when it was to be given on.
	last, due time.Time
}

func (p *player) event(e *computev1.ExecEvent) error {
	if e.GetHeartbeat() != nil || e.GetEmittedAt() == nil {
		return p.next(e)
	}
	at := e.GetEmittedAt().AsTime()
	if p.last.IsZero() {
		p.last, p.due = at, time.Now()
	}
	if pause := time.Duration(float64(at.Sub(p.last)) / p.speed); pause > 0 {
		p.last, p.due = at, p.due.Add(min(pause, p.most))
		if err := p.wait(); err != nil {
			return err
		}
	}
	return p.next(e)
}

// wait waits until an event is due. One that comes late delays those behind it: no pause is made up for.
func (p *player) wait() error {
	left := time.Until(p.due)
	if left <= 0 {
		p.due = time.Now()
		return nil
	}
	return pause.For(p.ctx, left)
}

const (
	castColumns = 80
	castRows    = 24
)

// cast writes a recording as asciicast v2: a line with what it is, then a line for each piece of output. A terminal shows it, so lines
// end as a terminal wants them, and text is whole characters.
type cast struct {
	id   string
	path string
	file *os.File
	out  *bufio.Writer
	// begin is when the first event was recorded, at how far behind it the last line stands, in seconds.
	begin  time.Time
	headed bool
	at     float64
	// rest is the beginning of a character whose end has not come yet, cr that the last byte was a carriage return, of each stream.
	rest map[string][]byte
	cr   map[string]bool
	// terminal is its size at first where the exec ran on one, which ends lines as a terminal wants them by itself; resizes are the later
	// ones that no line tells of yet.
	terminal *commonv1.TerminalSize
	resizes  []*computev1.TerminalResize
	err      error
}

// newCast begins a recording beside the file that it is to become; - is stdout.
func newCast(e *Env, path, exec string) (*cast, error) {
	c := &cast{id: exec, rest: map[string][]byte{}, cr: map[string]bool{}}
	if path == "-" {
		c.out = bufio.NewWriter(e.Stdout)
		return c, nil
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".cast-*")
	if err != nil {
		return nil, fmt.Errorf("--asciicast: %w", err)
	}
	c.path, c.file, c.out = path, f, bufio.NewWriter(f)
	return c, nil
}

// before records each event and then gives it to another.
func (c *cast) before(next func(*computev1.ExecEvent) error) func(*computev1.ExecEvent) error {
	return func(e *computev1.ExecEvent) error {
		if err := c.event(e); err != nil {
			return fmt.Errorf("write the recording: %w", err)
		}
		return next(e)
	}
}

func (c *cast) event(e *computev1.ExecEvent) error {
	if e.GetHeartbeat() != nil {
		return nil
	}
	at := e.GetEmittedAt().AsTime()
	if c.begin.IsZero() {
		c.begin = at
		c.resized(at)
		c.header()
	}
	c.resized(at)
	c.at = max(c.at, at.Sub(c.begin).Seconds())
	switch v := e.GetEvent().(type) {
	case *computev1.ExecEvent_Stdout:
		c.piece("stdout", v.Stdout.GetData())
	case *computev1.ExecEvent_Stderr:
		c.piece("stderr", v.Stderr.GetData())
	case *computev1.ExecEvent_Gap:
		c.line("m", fmt.Sprintf("%s of %s were dropped here", render.Bytes(v.Gap.GetTo()-v.Gap.GetFrom()), v.Gap.GetStream()))
	case *computev1.ExecEvent_Completed:
		c.flush()
		c.line("m", fmt.Sprintf("exit code %d (%s)", v.Completed.GetExitCode(), v.Completed.GetReason()))
	}
	return c.err
}

// resized tells of the sizes that the terminal had up to a time; before the header they are its first.
func (c *cast) resized(until time.Time) {
	for len(c.resizes) > 0 && !c.resizes[0].GetTime().AsTime().After(until) {
		r := c.resizes[0]
		c.resizes = c.resizes[1:]
		if !c.headed {
			c.terminal = r.GetSize()
			continue
		}
		c.at = max(c.at, r.GetTime().AsTime().Sub(c.begin).Seconds())
		c.line("r", fmt.Sprintf("%dx%d", r.GetSize().GetColumns(), r.GetSize().GetRows()))
	}
}

func (c *cast) header() {
	c.headed = true
	columns, rows := uint32(castColumns), uint32(castRows)
	if c.terminal != nil {
		columns, rows = c.terminal.GetColumns(), c.terminal.GetRows()
	}
	c.json(struct {
		Version   int    `json:"version"`
		Width     uint32 `json:"width"`
		Height    uint32 `json:"height"`
		Timestamp int64  `json:"timestamp"`
		Title     string `json:"title"`
	}{2, columns, rows, c.begin.Unix(), "exec " + c.id})
}

// piece records output up to the last whole character; what cannot be the beginning of one is shown as U+FFFD.
func (c *cast) piece(stream string, data []byte) {
	data = append(c.rest[stream], data...)
	whole := len(data)
	for n := 1; n < utf8.UTFMax && n <= len(data); n++ {
		if b := data[len(data)-n]; utf8.RuneStart(b) {
			if !utf8.FullRune(data[len(data)-n:]) {
				whole -= n
			}
			break
		}
	}
	c.rest[stream] = append([]byte(nil), data[whole:]...)
	c.text(stream, data[:whole])
}

func (c *cast) text(stream string, data []byte) {
	if len(data) == 0 {
		return
	}
	lines := make([]byte, 0, len(data)+len(data)/16)
	for _, b := range data {
		if b == '\n' && !c.cr[stream] && c.terminal == nil {
			lines = append(lines, '\r')
		}
		lines, c.cr[stream] = append(lines, b), b == '\r'
	}
	c.line("o", string(lines))
}

// flush records beginnings of characters whose ends never came.
func (c *cast) flush() {
	for _, stream := range []string{"stdout", "stderr"} {
		c.text(stream, c.rest[stream])
		delete(c.rest, stream)
	}
}

func (c *cast) line(kind, text string) {
	c.json([]any{json.Number(fmt.Sprintf("%.6f", c.at)), kind, text})
}

func (c *cast) json(v any) {
	if c.err != nil {
		return
	}
	enc := json.NewEncoder(c.out)
	enc.SetEscapeHTML(false)
	c.err = enc.Encode(v)
}

// finish makes the recording the file. One without an event is a recording too.
func (c *cast) finish() error {
	if c.begin.IsZero() {
		c.begin = time.Now()
		c.header()
	}
	c.flush()
	err := c.err
	if err == nil {
		err = c.out.Flush()
	}
	if err == nil && c.file != nil {
		if err = c.file.Close(); err == nil {
			err = os.Rename(c.file.Name(), c.path)
		}
	}
	if err != nil {
		return fmt.Errorf("write the recording: %w", err)
	}
	c.file = nil
	return nil
}

// discard removes what was begun and not finished.
func (c *cast) discard() {
	if c.file == nil {
		return
	}
	_ = c.file.Close()
	_ = os.Remove(c.file.Name())
}
