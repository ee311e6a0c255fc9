package sandboxapi

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/transcript"
	"github.com/sandtrail/sandtrail/services/gateway/internal/output"
)

// framing is how output stands in server-sent events, which hold lines of text and no other bytes.
type framing int

const (
	// exactText: what a reader of the standard puts together from the data of all events is the output, every newline of it. What text
	// cannot hold is lost: bytes that are no UTF-8 are U+FFFD, and a carriage return is a newline.
	exactText framing = iota
	// wholeLines is for readers that print each line of data with a newline of their own: events hold whole lines, without the last newline.
	wholeLines
	// base64Data holds every byte: the data of each event is base64.
	base64Data
)

// framing that the caller wants. The published command line reads lines by itself and says nothing about what it takes.
func (c *call) framing() (framing, error) {
	switch asked := c.r.URL.Query().Get("framing"); asked {
	case "text":
		return exactText, nil
	case "lines":
		return wholeLines, nil
	case "base64":
		return base64Data, nil
	case "":
	default:
		return exactText, field("framing", "must be text, lines or base64")
	}
	if strings.HasPrefix(c.r.UserAgent(), "python-requests/") && !strings.Contains(c.r.Header.Get("Accept"), "text/event-stream") {
		return wholeLines, nil
	}
	return exactText, nil
}

// framer turns the bytes of the two streams into the data of events.
type framer struct {
	how framing
	// held are the bytes of each stream that wait for what comes behind them: the beginning of a character, a carriage return that may be
	// half of a line's end, or a line that has not ended.
	held map[string][]byte
}

func newFramer(how framing) *framer { return &framer{how: how, held: map[string][]byte{}} }

// maxLine is how long a line may be that is held back.
const maxLine = 64 << 10

// take gives the data of the next event of a stream; false: there is none yet. With all set nothing is held back.
func (f *framer) take(stream string, data []byte, all bool) (string, bool) {
	if f.how == base64Data {
		return base64.StdEncoding.EncodeToString(data), len(data) > 0
	}
	raw := slices.Concat(f.held[stream], data)
	ready := len(raw)
	if !all {
		ready = whole(raw)
	}
	text := f.plain(raw[:ready])
	rest := raw[ready:]
	if f.how == wholeLines && !all {
		end := strings.LastIndexByte(text, '\n')
		switch {
		case end < 0 && len(text) < maxLine:
			f.held[stream] = bytes.Clone(raw)
			return "", false
		case end >= 0:
			// What is held has been made text already, which doing again does not change.
			rest = append([]byte(text[end+1:]), rest...)
			text = text[:end+1]
		}
	}
	f.held[stream] = bytes.Clone(rest)
	if text == "" {
		return "", false
	}
	if f.how == wholeLines {
		text = strings.TrimSuffix(text, "\n")
	}
	return text, true
}

// holds reports whether something waits for what comes behind it.
func (f *framer) holds() bool {
	return len(f.held[transcript.Stdout])+len(f.held[transcript.Stderr]) > 0
}

// whole is how many bytes of data are sure to mean what they mean whatever comes behind them.
func whole(data []byte) int {
	n := len(data)
	for back := 1; back <= min(utf8.UTFMax-1, n); back++ {
		if b := data[n-back]; utf8.RuneStart(b) {
			if b >= utf8.RuneSelf && !utf8.FullRune(data[n-back:]) {
				return n - back
			}
			break
		}
	}
	if n > 0 && data[n-1] == '\r' {
		return n - 1
	}
	return n
}

// plain is data as text that server-sent events can hold: the only character in it that ends a line is the newline.
func (f *framer) plain(data []byte) string {
	s := strings.ToValidUTF8(string(data), "\uFFFD")
	s = strings.ReplaceAll(s, "\r\n", "\n")
	s = strings.ReplaceAll(s, "\r", "\n")
	if f.how == wholeLines {
		// Those readers end a line there too, and would take what a program prints behind it for an event.
		s = strings.Map(func(r rune) rune {
			switch r {
			case '\v', '\f', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
				return '\n'
			}
			return r
		}, s)
	}
	return s
}

// events sends what it is told as server-sent events. No line that it writes begins with anything but event: or data:, because the
// published command line prints every other one; a silence is broken by an empty line.
type events struct {
	*call
	frame *framer
	id    string
	// numbered: each event behind which nothing is held back has the number of its chunk as its id, to come back with. The published
	// command line does not understand that.
	numbered bool
	number   uint64
}

func (w *events) exec() string { return w.id }

func (w *events) Named(id string) error {
	w.id = id
	w.w.Header().Set(headerExecution, id)
	return nil
}

func (w *events) Output(i output.Item) error {
	switch {
	case i.Chunk == nil:
		return w.send([]byte("\n"))
	case i.Chunk.GapTo > 0:
		if err := w.flush(); err != nil {
			return err
		}
		w.number = i.Chunk.Number
		return w.event("error", fmt.Sprintf("%d bytes of %s were dropped here: it wrote more than its limit, or faster than it could be read",
			i.Chunk.GapTo-i.Chunk.Offset, i.Chunk.Stream))
	}
	if data, ok := w.frame.take(i.Chunk.Stream, i.Chunk.Data, false); ok {
		if !w.frame.holds() {
			w.number = i.Chunk.Number
		}
		return w.event(i.Chunk.Stream, data)
	}
	return nil
}

// flush sends all that is held back.
func (w *events) flush() error {
	for _, stream := range []string{transcript.Stdout, transcript.Stderr} {
		if data, ok := w.frame.take(stream, nil, true); ok {
			if err := w.event(stream, data); err != nil {
				return err
			}
		}
	}
	return nil
}

// finish sends how the exec ended: exit with its code, or error where no end was observed. An error before anything was sent is the call's.
func (w *events) finish(x sandbox.Exec, err error) error {
	if err != nil && w.Status == 0 {
		return err
	}
	if err := w.flush(); err != nil {
		return err
	}
	if err != nil {
		var f *fault.Error
		if !errors.As(w.Shown(w.ctx, err), &f) {
			f = fault.From(err)
		}
		return w.event("error", f.Message)
	}
	return w.event("exit", strconv.Itoa(int(x.Completed.GetExitCode())))
}

func (w *events) event(name, data string) error {
	if name == "error" {
		data = (&framer{how: wholeLines}).plain([]byte(data))
	}
	var b bytes.Buffer
	if w.numbered && w.number > 0 {
		b.WriteString("id: " + strconv.FormatUint(w.number, 10) + "\n")
	}
	w.number = 0
	b.WriteString("event: " + name + "\n")
	for line := range strings.SplitSeq(data, "\n") {
		b.WriteString("data: " + line + "\n")
	}
	b.WriteByte('\n')
	return w.send(b.Bytes())
}

func (w *events) send(b []byte) error { return w.Event(mediaSSE, b) }
