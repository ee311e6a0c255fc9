package mcpapi

import (
	"encoding/base64"
	"fmt"
	"unicode/utf8"
)

// window keeps of one stream its beginning from an offset on, and its end.
type window struct {
	name string
	// from is the offset of the first byte that is wanted; headMost and tailMost bound what is kept.
	from               uint64
	headMost, tailMost int
	head, tail         []byte
	// at is the offset behind the last byte that was seen; dropped is what nobody has of it.
	at, dropped uint64
	// holed: what comes next does not follow head.
	holed bool
}

// add takes bytes at an offset; those that were seen before are left out, and what they leave out is known to be missing.
func (w *window) add(offset uint64, data []byte) {
	end, start := offset+uint64(len(data)), max(w.at, w.from)
	w.at = max(w.at, end)
	switch {
	case end <= start:
		return
	case offset < start:
		data = data[start-offset:]
	case offset > start:
		w.holed = true
	}
	if !w.holed {
		take := min(len(data), w.headMost-len(w.head))
		w.head = append(w.head, data[:take]...)
		data = data[take:]
		w.holed = len(data) > 0
	}
	w.tail = append(w.tail, data...)
	if over := len(w.tail) - w.tailMost; over > w.tailMost {
		w.tail = append(w.tail[:0], w.tail[over:]...)
	}
}

// gap says that the bytes up to an offset were not recorded.
func (w *window) gap(from, to uint64) {
	w.at = max(w.at, to)
	if to > w.from {
		w.dropped += to - max(from, w.from)
		w.holed = true
	}
}

// full: nothing more is needed of the beginning of a stream that has so many bytes.
func (w *window) full(bytes uint64) bool {
	return w.holed || len(w.head) >= w.headMost || w.at >= bytes
}

// output is what a result shows of one stream.
type output struct {
	Text     string `json:"text" jsonschema:"the output from offset on, as far as it is shown"`
	Tail     string `json:"tail,omitempty" jsonschema:"the end of the output where not all of it is shown"`
	Encoding string `json:"encoding" jsonschema:"utf-8, or base64 where the bytes are no text"`
	Offset   uint64 `json:"offset" jsonschema:"of the first byte of text"`
	Bytes    uint64 `json:"bytes" jsonschema:"bytes of the stream so far"`
	Omitted  uint64 `json:"omitted_bytes" jsonschema:"bytes between text and tail that are not shown"`
	Note     string `json:"note,omitempty" jsonschema:"where the rest is"`
}

// shown gives what the window holds; total is the size of the stream where it is known.
func (w *window) shown(total uint64) output {
	head, tail := w.head, w.tail[max(0, len(w.tail)-w.tailMost):]
	end := max(w.at, w.from)
	omitted := end - w.from - uint64(len(head)) - uint64(len(tail))
	if total > end { // what lies behind was not read
		omitted += total - end
	}
	if omitted > 0 {
		head = head[:len(head)-cutRune(head)]
		skip := 0
		for skip < len(tail) && skip < utf8.UTFMax-1 && !utf8.RuneStart(tail[skip]) {
			skip++
		}
		omitted += uint64(len(w.head) - len(head) + skip)
		tail = tail[skip:]
	} else {
		head, tail = append(head[:len(head):len(head)], tail...), nil
	}
	o := output{Encoding: utf8Text, Offset: w.from, Bytes: max(w.at, total), Omitted: omitted}
	if utf8.Valid(head) && utf8.Valid(tail) {
		o.Text, o.Tail = string(head), string(tail)
	} else {
		o.Encoding = base64Text
		o.Text = base64.StdEncoding.EncodeToString(head)
		o.Tail = base64.StdEncoding.EncodeToString(tail)
	}
	if omitted > 0 {
		o.Note = fmt.Sprintf("%d bytes are not shown: get_execution with %s_offset=%d reads on behind text", omitted, w.name, w.from+uint64(len(head)))
	}
	if w.dropped > 0 {
		o.Note += fmt.Sprintf("; %d of them were not recorded, because the command wrote more than its limit", w.dropped)
	}
	return o
}

// cutRune is how many bytes at the end of text are the beginning of a character whose rest is not there.
func cutRune(text []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if last := text[len(text)-n:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				return n
			}
			return 0
		}
	}
	return 0
}

// encoded is bytes as they can stand in JSON, every one of them.
func encoded(data []byte) (text, encoding string) {
	if utf8.Valid(data) {
		return string(data), utf8Text
	}
	return base64.StdEncoding.EncodeToString(data), base64Text
}
