package jslog

import (
	"context"
	"maps"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// outcome is what the network does to one publish.
type outcome int

const (
	goesWell  outcome = iota
	neverSent         // the message is lost, nobody answers
	ackLost           // it is stored, the answer is lost
	sentTwice         // the network repeats it, the second answer arrives
	sentLater         // nobody answers; a copy arrives at some later time
	nobody            // there are no responders
	outcomes
	full // the server refuses it for lack of room
)

// faulty is a publisher over a bad network. Each publish takes the next outcome of the script; behind its end all go well.
type faulty struct {
	publisher
	mu     sync.Mutex
	script []outcome
	late   [][]*nats.Msg
}

func (f *faulty) next() outcome {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.script) == 0 {
		return goesWell
	}
	o := f.script[0]
	f.script = f.script[1:]
	return o
}

func (f *faulty) play(script []outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script = script
}

func (f *faulty) publish(ctx context.Context, messages []*nats.Msg) (ack, error) {
	if err := ctx.Err(); err != nil {
		return ack{}, err
	}
	switch f.next() {
	case neverSent:
		return ack{}, nats.ErrTimeout
	case ackLost:
		_, _ = f.publisher.publish(ctx, copies(messages))
		return ack{}, nats.ErrTimeout
	case sentTwice:
		_, _ = f.publisher.publish(ctx, copies(messages))
	case sentLater:
		f.mu.Lock()
		f.late = append(f.late, copies(messages))
		f.mu.Unlock()
		return ack{}, nats.ErrTimeout
	case nobody:
		return ack{}, nats.ErrNoResponders
	case full:
		return ack{}, &jetstream.APIError{Code: 503, ErrorCode: codeStoreFailed, Description: "maximum bytes exceeded"}
	}
	return f.publisher.publish(ctx, messages)
}

// deliver lets the i-th late copy arrive.
func (f *faulty) deliver(ctx context.Context, i int) {
	f.mu.Lock()
	m := f.late[i]
	f.late = append(f.late[:i], f.late[i+1:]...)
	f.mu.Unlock()
	_, _ = f.publisher.publish(ctx, m)
}

func copies(messages []*nats.Msg) []*nats.Msg {
	out := make([]*nats.Msg, len(messages))
	for i, m := range messages {
		c := nats.NewMsg(m.Subject)
		c.Header, c.Data = maps.Clone(m.Header), m.Data
		out[i] = c
	}
	return out
}

// lagging is a reader at a replica that misses the end of a subject now and then, or does not answer.
type lagging struct {
	reader
	mu     sync.Mutex
	script []int // how many messages the replica lacks; negative: it does not answer
}

func (l *lagging) next() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.script) == 0 {
		return 0
	}
	lacks := l.script[0]
	l.script = l.script[1:]
	return lacks
}

// leaderPage may go without an answer, but the leader lacks nothing.
func (l *lagging) leaderPage(ctx context.Context, subject string, from uint64, n int) ([]stored, int, error) {
	if l.next() < 0 {
		return nil, 0, nats.ErrTimeout
	}
	return l.reader.leaderPage(ctx, subject, from, n)
}

func (l *lagging) page(ctx context.Context, subject string, from uint64, n int) ([]stored, int, error) {
	lacks := l.next()
	if lacks < 0 {
		return nil, 0, nats.ErrTimeout
	}
	messages, pending, err := l.reader.page(ctx, subject, from, n)
	if err != nil {
		return nil, 0, err
	}
	behind := min(lacks, pending)
	cut := min(lacks-behind, len(messages))
	return messages[:len(messages)-cut], pending - behind, nil
}
