// Package talk holds a conversation with an exec that runs for long and answers what it is told: a shell, an interpreter. A question is
// text for its standard input, the answer is what it writes between two frames. Nothing of it is kept here: any gateway goes on where
// another one was.
//
// Who asks must be the only one who does, see usecase.UseCases.Alone. That is a lease, so one who slept through its end may still write
// when another one does already. Of what both write at the same place the beginning of one is left out (offsets see to that): so a question
// must mean nothing without its first byte, and nothing without its last one. Text that repeats the token at its end, and that is nothing a
// program would take for anything without the word at its beginning, is such.
package talk

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/transcript"
)

// Exec is the other side: an exec whose standard input is open, as this gateway reaches it.
type Exec interface {
	// Write writes data behind the first offset bytes of standard input and returns how much that has taken in all. What it has already is
	// not written again. fault.Unavailable: it may work in a moment.
	Write(ctx context.Context, offset uint64, data []byte) (uint64, error)
	// Last is the number of its newest chunk, 0 without one.
	Last(ctx context.Context) (uint64, error)
	// Follow gives each chunk behind one, in order, until the exec's end, which is nil, or until ctx ends or each fails.
	Follow(ctx context.Context, after uint64, each func(*transcript.Chunk) error) error
}

// How a question ends without an answer.
var (
	// ErrNotBegun: nothing of the answer came in time. The question stands in the standard input and may still be answered.
	ErrNotBegun = errors.New("the answer has not begun")
	// ErrUnfinished: the answer has begun, and did not end in time.
	ErrUnfinished = errors.New("the answer has not ended")
	// ErrEnded: the exec has ended, and with it the conversation. Its receipt says how.
	ErrEnded = errors.New("the exec has ended")
)

const (
	// writeBytes go at once.
	writeBytes = 64 << 10
	// writePause is before another try at an exec that cannot be reached.
	writePause = 100 * time.Millisecond
)

// Conversation is with one exec, from its newest output on. Its methods are for one goroutine. Close it.
type Conversation struct {
	exec   Exec
	offset uint64
	// known: offset is.
	known  bool
	chunks chan *transcript.Chunk
	stop   context.CancelFunc
	// over closes when nothing more comes; err says why, and is nil behind the end of the exec.
	over chan struct{}
	err  error
}

// Open begins a conversation. It waits for nothing but the log: the exec need not run yet.
func Open(ctx context.Context, exec Exec) (*Conversation, error) {
	after, err := exec.Last(ctx)
	if err != nil {
		return nil, err
	}
	follow, stop := context.WithCancel(ctx)
	c := &Conversation{exec: exec, chunks: make(chan *transcript.Chunk), stop: stop, over: make(chan struct{})}
	go func() {
		defer close(c.over)
		c.err = exec.Follow(follow, after, func(chunk *transcript.Chunk) error {
			select {
			case c.chunks <- chunk:
				return nil
			case <-follow.Done():
				return follow.Err()
			}
		})
	}()
	return c, nil
}

// Close ends it. The exec goes on.
func (c *Conversation) Close() {
	c.stop()
	<-c.over
}

// Question is what is said, and how long its answer may take.
type Question struct {
	// Text is written with a newline before and behind it; the token is in it, see NewToken.
	Text, Token string
	// Begin is how long it may take until the answer begins; 0: until ctx ends.
	Begin time.Duration
	// Answer is given what is answered, if it is not nil: chunks with a stream and data, and gaps, where output was dropped. Data is only
	// lent.
	Answer func(*transcript.Chunk)
}

// Answer is what is known of an answer beside its output.
type Answer struct {
	// Begun: the question was taken up.
	Begun bool
	// Said stands behind the end of the answer on standard output.
	Said string
}

// NewToken makes what no other question has: 32 hexadecimal digits.
func NewToken() string { return strings.ReplaceAll(ids.New(), "-", "") }

// Ask asks and waits for the whole answer. Without one it fails with ErrNotBegun or ErrUnfinished when ctx's deadline is over, with
// ErrEnded, with ctx's error, or with why the exec cannot be reached. Answer.Begun is right also then.
func (c *Conversation) Ask(ctx context.Context, q Question) (Answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	written := make(chan error, 1)
	writing := c.say(ctx, "\n"+q.Text+"\n", written)
	defer func() {
		cancel()
		<-writing
	}()
	var begin <-chan time.Time
	if q.Begin > 0 {
		t := time.NewTimer(q.Begin)
		defer t.Stop()
		begin = t.C
	}
	l := newListener(q)
	for {
		select {
		case chunk := <-c.chunks:
			l.hear(chunk)
			if l.done() {
				return l.answer(), nil
			}
		case err := <-written:
			if err != nil {
				return l.give(c.unsaid(err))
			}
			written = nil
		case <-begin:
			if !l.begun() {
				return l.give(ErrNotBegun)
			}
		case <-c.over:
			if c.err != nil {
				return l.give(c.err)
			}
			return l.give(ErrEnded)
		case <-ctx.Done():
			switch {
			case !errors.Is(ctx.Err(), context.DeadlineExceeded):
				return l.give(context.Cause(ctx))
			case l.begun():
				return l.give(ErrUnfinished)
			}
			return l.give(ErrNotBegun)
		}
	}
}

// unsaid is why a question could not be written: an exec that has ended is told so by who follows it, with all that it wrote before.
func (c *Conversation) unsaid(err error) error {
	if fault.CodeOf(err) == fault.FailedPrecondition {
		return ErrEnded
	}
	return err
}

// say writes behind what was written, and tells written how that went. The channel closes when it is at it no more.
func (c *Conversation) say(ctx context.Context, text string, written chan<- error) <-chan struct{} {
	over := make(chan struct{})
	go func() {
		defer close(over)
		written <- c.write(ctx, []byte(text))
	}()
	return over
}

func (c *Conversation) write(ctx context.Context, data []byte) error {
	if !c.known {
		offset, err := c.put(ctx, nil)
		if err != nil {
			return err
		}
		c.offset, c.known = offset, true
	}
	for len(data) > 0 {
		taken, err := c.put(ctx, data[:min(len(data), writeBytes)])
		if err != nil {
			return err
		}
		if taken > c.offset {
			data = data[min(taken-c.offset, uint64(len(data))):]
			c.offset = taken
		}
	}
	return nil
}

// put tries again while the exec cannot be reached: what was taken is not taken twice.
func (c *Conversation) put(ctx context.Context, data []byte) (uint64, error) {
	for {
		taken, err := c.exec.Write(ctx, c.offset, data)
		if err == nil || ctx.Err() != nil || fault.CodeOf(err) != fault.Unavailable && fault.CodeOf(err) != fault.DeadlineExceeded {
			return taken, err
		}
		if pause.For(ctx, writePause) != nil {
			return taken, err
		}
	}
}

// Wait waits for the end of the exec, or of ctx, and throws away what it writes until then.
func (c *Conversation) Wait(ctx context.Context) {
	for {
		select {
		case <-c.chunks:
		case <-c.over:
			return
		case <-ctx.Done():
			return
		}
	}
}
