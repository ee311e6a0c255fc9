package output

import (
	"sync"

	"github.com/nats-io/nats.go"
)

// maxQueue bounds the live messages that wait for a slow reader, in bytes with their headers: two dozen full chunks.
const maxQueue = 4 << 20

// queue holds live messages until the reader gets to them. When they are more than maxQueue all of them are dropped, and so is
// what comes until the reader looks: it then reads what is stored instead. A dead reader costs maxQueue and no more.
type queue struct {
	mu       sync.Mutex
	messages []*nats.Msg
	bytes    int
	missed   bool
	wake     chan struct{}
}

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1)} }

// put never blocks.
func (q *queue) put(m *nats.Msg) {
	q.mu.Lock()
	if !q.missed {
		q.messages = append(q.messages, m)
		q.bytes += m.Size()
		if q.bytes > maxQueue {
			q.messages, q.bytes, q.missed = nil, 0, true
		}
	}
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take gives what waits and whether anything was dropped since the last take.
func (q *queue) take() (messages []*nats.Msg, missed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	messages, missed = q.messages, q.missed
	q.messages, q.bytes, q.missed = nil, 0, false
	return messages, missed
}
