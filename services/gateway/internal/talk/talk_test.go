package talk

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/transcript"
)

// program is an exec that reads lines: answers is called with each.
type program struct {
	answers func(p *program, line string)
	// most is how much of a write is taken at once; 0 is all.
	most int
	// refusals are the errors of the next writes.
	refusals []error

	mu     sync.Mutex
	input  []byte
	read   int
	chunks []*transcript.Chunk
	ended  bool
	woken  chan struct{}
}

func newProgram(answers func(p *program, line string)) *program {
	return &program{answers: answers, woken: make(chan struct{})}
}

func (p *program) Write(_ context.Context, offset uint64, data []byte) (uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.refusals) > 0 {
		err := p.refusals[0]
		p.refusals = p.refusals[1:]
		return 0, err
	}
	have := uint64(len(p.input))
	if p.ended {
		return have, fault.New(fault.FailedPrecondition, fault.ReasonIllegalState, "the command has ended")
	}
	if offset > have {
		return have, fault.New(fault.InvalidArgument, fault.ReasonValidation, "bytes before the offset are missing")
	}
	fresh := data[min(have-offset, uint64(len(data))):]
	if p.most > 0 {
		fresh = fresh[:min(len(fresh), p.most)]
	}
	p.input = append(p.input, fresh...)
	for {
		line, _, ok := bytes.Cut(p.input[p.read:], []byte{'\n'})
		if !ok {
			return uint64(len(p.input)), nil
		}
		p.read += len(line) + 1
		if p.answers != nil {
			p.answers(p, string(line))
		}
	}
}

// writes is called by answers, with the lock.
func (p *program) writes(stream, data string) {
	p.add(&transcript.Chunk{Stream: stream, Data: []byte(data)})
}

func (p *program) add(c *transcript.Chunk) {
	c.Number = uint64(len(p.chunks) + 1)
	p.chunks = append(p.chunks, c)
	p.wake()
}

func (p *program) wake() {
	close(p.woken)
	p.woken = make(chan struct{})
}

func (p *program) do(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func (p *program) Last(context.Context) (uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return uint64(len(p.chunks)), nil
}

func (p *program) Follow(ctx context.Context, after uint64, each func(*transcript.Chunk) error) error {
	for {
		p.mu.Lock()
		fresh, ended, woken := p.chunks[after:], p.ended, p.woken
		p.mu.Unlock()
		for _, c := range fresh {
			if err := each(c); err != nil {
				return err
			}
			after++
		}
		if ended && len(fresh) == 0 {
			return nil
		}
		if len(fresh) > 0 {
			continue
		}
		select {
		case <-woken:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// heard is what an answer brought.
type heard struct{ out, err, gaps string }

func (h *heard) add(c *transcript.Chunk) {
	switch {
	case c.GapTo > 0:
		h.gaps += c.Stream
	case c.Stream == transcript.Stdout:
		h.out += string(c.Data)
	default:
		h.err += string(c.Data)
	}
}

// ask asks with a token and text of ask TOKEN TEXT TOKEN.
func ask(t *testing.T, ctx context.Context, c *Conversation, token, text string) (heard, Answer, error) {
	t.Helper()
	var h heard
	a, err := c.Ask(ctx, Question{Text: "ask " + token + " " + text + " " + token, Token: token, Answer: h.add})
	return h, a, err
}

func opened(t *testing.T, p *program) *Conversation {
	t.Helper()
	c, err := Open(t.Context(), p)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// question takes a line apart; false: it is no whole question.
func question(line string) (token, text string, ok bool) {
	f := strings.Fields(line)
	if len(f) != 4 || f[0] != "ask" || f[1] != f[3] {
		return "", "", false
	}
	return f[1], f[2], true
}

// An answer is what stands between its frames, however the bytes come, whatever stands around them and whatever it holds.
func TestAnAnswerIsWhatStandsBetweenItsFrames(t *testing.T) {
	token, other := NewToken(), NewToken()
	require.Len(t, token, 32)
	body := "a\x00\xff\n" + mark + token + mark + token[:31] + Opens(token) + mark + other + shut + "5\n" + mark + mark
	all := "noise" + Shuts(token) + "9\n" + Shuts(other) + "1\n" + Opens(token) + body + Shuts(token) + "7 /w x\nlater" + Opens(token) + Shuts(token) + "8\n"
	for cut := range len(all) {
		var h heard
		l := newListener(Question{Token: token, Answer: h.add})
		l.hear(&transcript.Chunk{Stream: transcript.Stderr, Data: []byte(Opens(token) + "e" + Shuts(token) + "\n")})
		for _, part := range []string{all[:cut], all[cut:]} {
			l.hear(&transcript.Chunk{Stream: transcript.Stdout, Data: []byte(part)})
		}
		require.True(t, l.done(), "cut at %d", cut)
		require.Equal(t, []any{body, "e", Answer{Begun: true, Said: "7 /w x"}}, []any{h.out, h.err, l.answer()}, "cut at %d", cut)
	}
	var h heard
	l := newListener(Question{Token: token, Answer: h.add})
	for i := range len(all) {
		l.hear(&transcript.Chunk{Stream: transcript.Stdout, Data: []byte{all[i]}})
	}
	require.Equal(t, body, h.out)
	require.False(t, l.done(), "standard error has not said that it is done")
	l.hear(&transcript.Chunk{Stream: transcript.Stderr, Data: []byte(Opens(token) + Shuts(token) + strings.Repeat("x", maxSaid*2) + "\n")})
	require.True(t, l.done())
	require.Len(t, l.ears[transcript.Stderr].said, maxSaid)
}

// Questions are asked one after another, each answered from behind whatever came before, by whomever.
func TestQuestionsAndAnswers(t *testing.T) {
	p := newProgram(func(p *program, line string) {
		token, text, ok := question(line)
		if !ok {
			return
		}
		p.writes(transcript.Stdout, Opens(token))
		p.writes(transcript.Stderr, "lost"+Opens(token)+"err "+text+Shuts(token)+"\n")
		p.writes(transcript.Stdout, "out "+text+Shuts(token)+"0 fine\n")
	})
	p.most = 3
	p.writes(transcript.Stdout, "hello")
	p.refusals = []error{fault.New(fault.Unavailable, fault.ReasonToolboxUnavailable, "not yet")}
	for _, c := range []*Conversation{opened(t, p), opened(t, p)} {
		c.known = false
		for _, text := range []string{"a", "b"} {
			h, a, err := ask(t, t.Context(), c, NewToken(), text)
			require.NoError(t, err)
			require.Equal(t, heard{out: "out " + text, err: "err " + text}, h)
			require.Equal(t, Answer{Begun: true, Said: "0 fine"}, a)
		}
		p.do(func() { p.input = append(p.input, "stale"...) })
		c.known = false
	}
	long := strings.Repeat("x", 5*writeBytes)
	p.most = 0
	h, _, err := ask(t, t.Context(), opened(t, p), NewToken(), long)
	require.NoError(t, err)
	require.Equal(t, "out "+long, h.out)
}

// A question without an answer ends in time, and says how far it came; what was answered until then is there.
func TestQuestionsWithoutAnAnswer(t *testing.T) {
	p := newProgram(func(p *program, line string) {
		if token, text, ok := question(line); ok && text == "half" {
			p.writes(transcript.Stdout, Opens(token)+"ha"+mark+token)
		}
	})
	c := opened(t, p)
	soon := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	_, a, err := ask(t, soon(), c, NewToken(), "nothing")
	require.ErrorIs(t, err, ErrNotBegun)
	require.False(t, a.Begun)
	token := NewToken()
	h, a, err := ask(t, soon(), c, token, "half")
	require.ErrorIs(t, err, ErrUnfinished)
	require.True(t, a.Begun)
	require.Equal(t, "ha"+mark+token, h.out, "what might have been a frame was none")
	_, err = c.Ask(t.Context(), Question{Text: "x", Token: NewToken(), Begin: 20 * time.Millisecond})
	require.ErrorIs(t, err, ErrNotBegun)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = ask(t, gone, c, NewToken(), "nothing")
	require.ErrorIs(t, err, context.Canceled)
	p.do(func() { p.refusals = []error{fault.New(fault.InvalidArgument, fault.ReasonValidation, "no")} })
	_, _, err = ask(t, t.Context(), c, NewToken(), "nothing")
	require.True(t, fault.Is(err, fault.ReasonValidation))
}

// The end of the exec is told behind all that it wrote, also where the question came too late for it.
func TestTheEndOfTheExec(t *testing.T) {
	p := newProgram(func(p *program, line string) {
		if token, _, ok := question(line); ok {
			p.writes(transcript.Stdout, Opens(token)+"last words")
			p.ended = true
			p.wake()
		}
	})
	c := opened(t, p)
	h, a, err := ask(t, t.Context(), c, NewToken(), "exit")
	require.ErrorIs(t, err, ErrEnded)
	require.Equal(t, []any{true, "last words"}, []any{a.Begun, h.out})
	_, a, err = ask(t, t.Context(), c, NewToken(), "more")
	require.ErrorIs(t, err, ErrEnded)
	require.False(t, a.Begun)
	c = opened(t, p)
	_, _, err = ask(t, t.Context(), c, NewToken(), "more")
	require.ErrorIs(t, err, ErrEnded)
}

// Output that was dropped is told, and not taken for a part of the answer before it has begun.
func TestGapsInAnAnswer(t *testing.T) {
	p := newProgram(func(p *program, line string) {
		token, _, ok := question(line)
		if !ok {
			return
		}
		p.add(&transcript.Chunk{Stream: transcript.Stdout, GapTo: 5})
		p.writes(transcript.Stdout, Opens(token)+"a"+mark)
		p.add(&transcript.Chunk{Stream: transcript.Stdout, Offset: 50, GapTo: 90})
		p.writes(transcript.Stdout, "b"+Shuts(token)+"\n")
		p.writes(transcript.Stderr, Opens(token)+Shuts(token)+"\n")
	})
	h, _, err := ask(t, t.Context(), opened(t, p), NewToken(), "x")
	require.NoError(t, err)
	require.Equal(t, heard{out: "a" + mark + "b", gaps: transcript.Stdout}, h)
}

// A follower that breaks is why there is no answer, never an end.
func TestAFollowerThatBreaks(t *testing.T) {
	broken := errors.New("broken")
	c := opened(t, newProgram(nil))
	c.stop()
	<-c.over
	c.err = broken
	_, _, err := ask(t, t.Context(), c, NewToken(), "x")
	require.ErrorIs(t, err, broken)
}

// Of two who write at once, which a lease prevents for as long as nobody sleeps through its end, at most the first is understood; whoever
// comes later is understood again.
func TestTwoWhoWriteAtOnceAreNeverMixed(t *testing.T) {
	first, second, third := NewToken(), NewToken(), NewToken()
	line := func(token, text string) string { return "\nask " + token + " " + text + " " + token + "\n" }
	one, two := line(first, "one"), line(second, "the-other-one")
	for cut := range len(one) + 1 { // so much of the first was there when the second came
		understood := map[string]string{}
		p := newProgram(func(_ *program, line string) {
			if token, text, ok := question(line); ok {
				understood[token] = text
			}
		})
		write := func(offset int, data string) {
			_, err := p.Write(t.Context(), uint64(offset), []byte(data))
			require.NoError(t, err)
		}
		write(0, one[:cut])
		write(0, two)
		write(len(two), "")
		write(0, one)
		write(len(p.input), line(third, "later"))
		require.Equal(t, "later", understood[third], "cut at %d: %q", cut, p.input)
		delete(understood, third)
		for token, text := range understood {
			require.Equal(t, map[string]string{first: "one", second: "the-other-one"}[token], text, "cut at %d", cut)
		}
		require.LessOrEqual(t, len(understood), 1, "cut at %d: %q", cut, p.input)
	}
}
