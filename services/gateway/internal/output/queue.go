package output

import (
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/sandtrail/sandtrail/services/gateway/internal/stored"
)

// maxQueue bounds the live messages that wait for a slow reader, in bytes with their headers: two dozen full chunks.
const maxQueue = 4 << 20

// queue holds live messages until the reader gets to them. When they are more than maxQueue, or the memory of all readers is used up,
// all of them are dropped, and so is what comes until the reader looks: it then reads what is stored instead. A dead reader costs
// maxQueue and no more, and many of them the memory and no more.
type queue struct {
	memory *stored.Memory

	mu       sync.Mutex
	messages []*nats.Msg
	bytes    int
	missed   bool
	closed   bool
	wake     chan struct{}
}

func newQueue(memory *stored.Memory) *queue {
	return &queue{memory: memory, wake: make(chan struct{}, 1)}
}

// put never blocks.
func (q *queue) put(m *nats.Msg) {
	q.mu.Lock()
	switch {
	case q.missed || q.closed:
	case q.bytes+m.Size() > maxQueue || !q.memory.Take(m.Size()):
		q.drop()
		q.missed = true
	default:
		q.messages = append(q.messages, m)
		q.bytes += m.Size()
	}
	q.mu.Unlock()
	signal(q.wake)
}

// take gives the next message, which is no longer counted; nil where none waits. missed: messages were dropped since it was said last.
func (q *queue) take() (m *nats.Msg, missed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	missed, q.missed = q.missed, false
	if len(q.messages) == 0 {
		return nil, missed
	}
	m = q.messages[0]
	q.messages[0] = nil
	q.messages = q.messages[1:]
	q.bytes -= m.Size()
	q.memory.Give(m.Size())
	return m, missed
}

// close drops what waits and takes nothing more.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.drop()
	q.closed = true
}

func (q *queue) drop() {
	q.memory.Give(q.bytes)
	q.messages, q.bytes = nil, 0
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
