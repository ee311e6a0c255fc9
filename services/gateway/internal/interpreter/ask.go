package interpreter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/transcript"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
)

// Exec is the exec of a context.
type Exec interface {
	// Write writes data behind the first offset bytes of standard input and returns how much that has taken in all. What it has already is
	// not written again.
	Write(ctx context.Context, offset uint64, data []byte) (uint64, error)
	// Last is the number of its newest chunk, or of one before; 0 without one.
	Last(ctx context.Context) (uint64, error)
	// Follow gives each chunk behind one, in order, until the exec's end, which is nil, or until ctx ends or each fails.
	Follow(ctx context.Context, after uint64, each func(*transcript.Chunk) error) error
}

// Memory bounds what is held of answers.
type Memory interface {
	Take(n int) bool
	Give(n int)
}

// ErrEnded: the exec ended before it answered.
var ErrEnded = errors.New("the context has ended")

const (
	// sayAgain is how long a context may at least take at first to say that it has a request, sayAgainMost later. Then the request is written
	// again: it was lost where two wrote at once, as two gateways may, because bytes at one place in standard input are taken from one of them.
	sayAgain, sayAgainMost = 500 * time.Millisecond, 8 * time.Second
	// retry is before another try to write.
	retry = 100 * time.Millisecond
	// pieceMost is the most bytes that are written at once: a message holds them.
	pieceMost = 256 << 10
	// spare is how long an answer may take beyond the time of the cell.
	spare = 30 * time.Second
)

// Asker asks contexts. Its zero value is ready.
type Asker struct {
	mu sync.Mutex
	// writers have one at a time write to a context, by the id of its exec, of those who ask by this gateway.
	writers map[string]*writers
}

type writers struct {
	turn chan struct{}
	// all who wait or write.
	all int
}

// Ask makes a request of the context with an id and gives the answer. Any number may ask at once, from any gateway: cells run one after another
// in the order in which they came in. ctx bounds the wait for them; a cell that has begun is answered within its time or
// fault.DeadlineExceeded. Where ctx ends a cell may have run, and may run on. What an answer takes of memory is given back by release.
func (k *Asker) Ask(ctx context.Context, id string, x Exec, r Request, memory Memory) (answer Answer, release func(), err error) {
	line, err := r.line()
	if err != nil {
		return Answer{}, func() {}, fault.From(err)
	}
	after, err := x.Last(ctx)
	if err != nil {
		return Answer{}, func() {}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	a := &asked{request: r, memory: memory, taken: make(chan struct{}), cancel: cancel}
	var sender sync.WaitGroup
	sender.Go(func() {
		a.send(ctx, func() error {
			leave, err := k.enter(ctx, id)
			if err != nil {
				return err
			}
			defer leave()
			return write(ctx, x, line)
		})
	})
	err = x.Follow(ctx, after, a.chunk)
	cause := context.Cause(ctx)
	cancel(nil)
	sender.Wait()
	if a.timer != nil {
		a.timer.Stop()
	}
	var own *fault.Error
	switch {
	case errors.Is(err, errAnswered):
		return a.answer, a.release, nil
	case err == nil:
		err = ErrEnded
	case errors.As(cause, &own):
		err = own
	}
	a.release()
	return Answer{}, func() {}, err
}

// enter waits for the turn to write to a context.
func (k *Asker) enter(ctx context.Context, id string) (leave func(), err error) {
	k.mu.Lock()
	w := k.writers[id]
	if w == nil {
		w = &writers{turn: make(chan struct{}, 1)}
		if k.writers == nil {
			k.writers = map[string]*writers{}
		}
		k.writers[id] = w
	}
	w.all++
	k.mu.Unlock()
	out := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if w.all--; w.all == 0 {
			delete(k.writers, id)
		}
	}
	select {
	case w.turn <- struct{}{}:
		return func() {
			<-w.turn
			out()
		}, nil
	case <-ctx.Done():
		out()
		return nil, ctx.Err()
	}
}

var errAnswered = errors.New("answered")

// asked is one request under way.
type asked struct {
	request Request
	memory  Memory
	cancel  context.CancelCauseFunc
	// line is the beginning of one that has not ended; skip: it is left out up to its end.
	line []byte
	skip bool
	held int
	// taken closes when the context has the request.
	taken  chan struct{}
	has    bool
	timer  *time.Timer
	answer Answer
}

func (a *asked) release() {
	a.memory.Give(a.held)
	a.held = 0
}

// send writes the request until the context says that it has it.
func (a *asked) send(ctx context.Context, write func() error) {
	for again := sayAgain; ; again = min(2*again, sayAgainMost) {
		err := write()
		wait := again + rand.N(again) // two who wrote at once do not do so again
		switch code := fault.CodeOf(err); {
		case err == nil:
		case code == fault.Unavailable || code == fault.DeadlineExceeded || code == fault.Conflict:
			wait = retry // its program is on its way, its worker comes back, or somebody else wrote
		case code == fault.FailedPrecondition:
			return // it has ended, which its output tells
		default:
			a.cancel(err)
			return
		}
		heard, stop := context.WithTimeout(ctx, wait)
		select {
		case <-a.taken:
		case <-heard.Done():
		}
		stop()
		select {
		case <-a.taken:
			return
		default:
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// write puts data behind what stands in standard input, as one piece unless somebody else writes at the same time.
func write(ctx context.Context, x Exec, data []byte) error {
	at, err := x.Write(ctx, 0, nil)
	if err != nil {
		return err
	}
	for len(data) > 0 {
		piece := data[:min(len(data), pieceMost)]
		now, err := x.Write(ctx, at, piece)
		switch {
		case err != nil:
			return err
		case now <= at:
			return fault.New(fault.Unavailable, fault.ReasonToolboxUnavailable, "the context takes nothing in").WithRetry(time.Second)
		case now > at+uint64(len(piece)):
			return fault.New(fault.Conflict, fault.ReasonConflict, "somebody else wrote to the context")
		}
		data, at = data[now-at:], now
	}
	return nil
}

// chunk takes the next piece of output.
func (a *asked) chunk(c *transcript.Chunk) error {
	if c.Stream != transcript.Stdout {
		return nil
	}
	if c.GapTo > 0 {
		if a.has {
			return fault.New(fault.Lost, fault.ReasonExecLost, "the answer was lost: more was written than could be recorded; the cell has run")
		}
		a.drop()
		a.skip = true
		return nil
	}
	data := c.Data
	for {
		part, rest, ended := bytes.Cut(data, []byte("\n"))
		if err := a.add(part); err != nil {
			return err
		}
		if !ended {
			return nil
		}
		if !a.skip {
			if err := a.hear(); err != nil {
				return err
			}
		}
		a.drop()
		a.skip = false
		data = rest
	}
}

func (a *asked) add(part []byte) error {
	if a.skip {
		return nil
	}
	if len(a.line)+len(part) > AnswerMost {
		a.drop()
		a.skip = true // no answer of the program's
		return nil
	}
	if !a.memory.Take(len(part)) {
		return edge.Busy()
	}
	a.held += len(part)
	a.line = append(a.line, part...)
	return nil
}

// drop forgets the line.
func (a *asked) drop() {
	a.memory.Give(len(a.line))
	a.held -= len(a.line)
	a.line = nil
}

// hear reads a line: the answer, a word about the request, or something else.
func (a *asked) hear() error {
	var head struct {
		ID    string `json:"id"`
		State string `json:"state"`
	}
	if json.Unmarshal(a.line, &head) != nil || head.ID != a.request.ID {
		return nil // somebody else's, or a half
	}
	if !a.has {
		a.has = true
		close(a.taken)
	}
	switch head.State {
	case "":
	case "begun":
		if a.timer == nil {
			late := time.Duration(a.request.Timeout*float64(time.Second)) + Grace + spare
			a.timer = time.AfterFunc(late, func() {
				a.cancel(fault.New(fault.DeadlineExceeded, fault.ReasonTimeout, "the context did not answer in time; restart it"))
			})
		}
		return nil
	default:
		return nil
	}
	if err := json.Unmarshal(a.line, &a.answer); err != nil {
		return fault.New(fault.Internal, fault.ReasonInternal, "the answer of the context cannot be read: the code has changed the interpreter itself; restart the context").
			Because(err)
	}
	a.line = nil // it counts as held until it is answered
	return errAnswered
}
