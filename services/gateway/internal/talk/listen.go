package talk

import (
	"bytes"
	"slices"

	"github.com/sandtrail/sandtrail/libs/transcript"
)

// A frame stands on both streams before the answer and behind it: mark, the token of the question, and open or shut. Behind shut comes on
// standard output what is said of the answer, and on both a newline. Only who knows the token can write a frame, and the mark is a control
// character that no trace of a shell shows of a text in which it is written as \036.
const (
	mark = "\x1e"
	open = "["
	shut = "]"
	// maxSaid bounds what stands behind the end, in bytes.
	maxSaid = 8 << 10
)

// Opens is the frame before an answer, Shuts the one behind it, up to what is said.
func Opens(token string) string { return mark + token + open }

// Shuts is the frame behind an answer: what is said of it and a newline follow.
func Shuts(token string) string { return mark + token + shut }

// listener takes the answer to a question out of what an exec writes.
type listener struct {
	ears map[string]*ear
	told func(*transcript.Chunk)
}

func newListener(q Question) *listener {
	l := &listener{ears: map[string]*ear{}, told: q.Answer}
	for _, stream := range []string{transcript.Stdout, transcript.Stderr} {
		l.ears[stream] = &ear{opens: []byte(Opens(q.Token)), shuts: []byte(Shuts(q.Token))}
	}
	return l
}

func (l *listener) answer() Answer {
	return Answer{Begun: l.begun(), Said: string(l.ears[transcript.Stdout].said)}
}

func (l *listener) hear(c *transcript.Chunk) {
	e := l.ears[c.Stream]
	switch {
	case e == nil:
	case c.GapTo > 0:
		l.tell(c.Stream, e.rest())
		if e.state == within && l.told != nil {
			l.told(c)
		}
	default:
		l.tell(c.Stream, e.hear(c.Data))
	}
}

func (l *listener) tell(stream string, data []byte) {
	if len(data) > 0 && l.told != nil {
		l.told(&transcript.Chunk{Stream: stream, Data: data})
	}
}

// give is the end of a question without an answer: what might have been the beginning of a frame was output.
func (l *listener) give(err error) (Answer, error) {
	for _, stream := range []string{transcript.Stdout, transcript.Stderr} {
		l.tell(stream, l.ears[stream].rest())
	}
	return l.answer(), err
}

func (l *listener) begun() bool {
	return l.ears[transcript.Stdout].state > before || l.ears[transcript.Stderr].state > before
}

func (l *listener) done() bool {
	return l.ears[transcript.Stdout].state == behind && l.ears[transcript.Stderr].state == behind
}

// Where a stream is.
const (
	before = iota
	within
	saying
	behind
)

// ear finds the answer in one stream. A frame may come in pieces, so it holds back as much as could be the beginning of one.
type ear struct {
	opens, shuts []byte
	state        int
	held, said   []byte
}

// hear takes the next bytes and returns those that are certainly of the answer, until the next call.
func (e *ear) hear(data []byte) (answer []byte) {
	if e.state == behind {
		return nil
	}
	all := slices.Concat(e.held, data)
	e.held = nil
	if e.state == before {
		if all = e.past(all, e.opens, nil); e.state == before {
			return nil
		}
	}
	if e.state == within {
		all = e.past(all, e.shuts, &answer)
	}
	if e.state == saying {
		e.say(all)
	}
	return answer
}

// past looks for a frame. Behind it the state is the next one and the rest is returned; what stands before it is put into passed. Without it
// the end that might be its beginning is held.
func (e *ear) past(all, frame []byte, passed *[]byte) []byte {
	i := bytes.Index(all, frame)
	if i >= 0 {
		e.state++
		if passed != nil {
			*passed = all[:i]
		}
		return all[i+len(frame):]
	}
	keep := beginning(all, frame)
	if passed != nil {
		*passed = all[:len(all)-keep]
	}
	e.held = bytes.Clone(all[len(all)-keep:])
	return nil
}

// beginning is how long the longest end of data is that frame begins with.
func beginning(data, frame []byte) int {
	for n := min(len(data), len(frame)-1); n > 0; n-- {
		if bytes.HasPrefix(frame, data[len(data)-n:]) {
			return n
		}
	}
	return 0
}

func (e *ear) say(data []byte) {
	line, _, ended := bytes.Cut(data, []byte{'\n'})
	e.said = append(e.said, line[:min(len(line), maxSaid-len(e.said))]...)
	if ended {
		e.state = behind
	}
}

// rest is what was held back and is of the answer all the same.
func (e *ear) rest() []byte {
	held := e.held
	e.held = nil
	if e.state != within {
		return nil
	}
	return held
}
