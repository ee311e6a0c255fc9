package relay

import (
	"context"
	"sync"
	"time"
)

// segment is what one chunk will hold: bytes of one stream, or the gap up to gapTo.
type segment struct {
	stream uint32
	offset uint64
	data   []byte
	gapTo  uint64
}

// packet is the most that a program's first write holds when the toolbox hands it over by itself (PIPE_BUF).
const packet = 4 << 10

// first reports whether it is a program's first write to a stream. It stays a chunk of its own however fast the next one comes:
// it is what people wait for, and a program that writes two lines gives two chunks.
func (s segment) first() bool { return s.offset == 0 && len(s.data) < packet }

// Budget bounds the bytes that all relays of a process hold together. Acquire waits for room.
type Budget interface {
	Acquire(ctx context.Context, n int64) error
	Release(n int64)
}

// queue is what has been read from the toolbox and is not stored yet, cut into segments in order. Over limit bytes put waits,
// which leaves the rest in the toolbox and, once its spool is full, holds the program back.
type queue struct {
	limit, minChunk, maxChunk int
	interval                  time.Duration
	budget                    Budget

	mu     sync.Mutex
	segs   []segment
	bytes  int
	closed bool
	// free are buffers of stored chunks, to be filled again.
	free [][]byte
	// ready is signalled when segs or closed changed, space when bytes became fewer.
	ready, space chan struct{}
}

func newQueue(o Options) *queue {
	return &queue{
		limit: o.QueueBytes, minChunk: o.MinChunk, maxChunk: o.MaxChunk, interval: o.Interval, budget: o.Budget,
		ready: make(chan struct{}, 1), space: make(chan struct{}, 1),
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put adds bytes of a stream and waits while the queue is full. It keeps data.
func (q *queue) put(ctx context.Context, stream uint32, offset uint64, data []byte) error {
	for len(data) > 0 {
		part := data[:min(len(data), q.maxChunk)]
		if q.budget != nil {
			if err := q.budget.Acquire(ctx, int64(len(part))); err != nil {
				return err
			}
		}
		if err := q.room(ctx); err != nil {
			q.release(len(part))
			return err
		}
		q.add(stream, offset, part)
		offset += uint64(len(part))
		data = data[len(part):]
	}
	return nil
}

func (q *queue) room(ctx context.Context) error {
	for {
		q.mu.Lock()
		full := q.bytes >= q.limit
		q.mu.Unlock()
		if !full {
			return ctx.Err()
		}
		select {
		case <-q.space:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (q *queue) add(stream uint32, offset uint64, data []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.bytes += len(data)
	if n := len(q.segs); n > 0 {
		last := &q.segs[n-1]
		if last.gapTo == 0 && last.stream == stream && last.offset+uint64(len(last.data)) == offset && !last.first() {
			fits := min(len(data), q.maxChunk-len(last.data))
			last.data = append(last.data, data[:fits]...)
			offset += uint64(fits)
			if data = data[fits:]; len(data) == 0 {
				signal(q.ready)
				return
			}
		}
	}
	// A copy, so that growing it later leaves the caller's bytes alone.
	q.segs = append(q.segs, segment{stream: stream, offset: offset, data: append(q.buffer(len(data)), data...)})
	signal(q.ready)
}

// buffer gives an empty buffer: small for the first bytes of a program, which may be all, of a whole chunk once it writes faster
// than its output is stored.
func (q *queue) buffer(n int) []byte {
	if last := len(q.free) - 1; last >= 0 {
		b := q.free[last]
		q.free = q.free[:last]
		return b[:0]
	}
	if q.bytes > n {
		n = q.maxChunk
	}
	return make([]byte, 0, n)
}

func (q *queue) putGap(stream uint32, from, to uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.segs = append(q.segs, segment{stream: stream, offset: from, gapTo: to})
	signal(q.ready)
}

// close says that nothing more comes; what is queued is still given out.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	signal(q.ready)
}

// next waits for the next chunk: at once when nothing was stored for an interval, when it is large enough, or when another
// stands behind it. False: the queue is closed and empty, or ctx ended.
func (q *queue) next(ctx context.Context, last time.Time) (segment, bool) {
	for {
		q.mu.Lock()
		var wait time.Duration
		switch {
		case len(q.segs) > 0:
			head := q.segs[0]
			wait = q.interval - time.Since(last)
			if q.closed || len(q.segs) > 1 || head.gapTo > 0 || len(head.data) >= q.minChunk || wait <= 0 {
				q.segs = q.segs[1:]
				q.mu.Unlock()
				return head, true
			}
		case q.closed:
			q.mu.Unlock()
			return segment{}, false
		}
		q.mu.Unlock()
		if !q.await(ctx, wait) {
			return segment{}, false
		}
	}
}

// await waits for a change, at most for d unless d is 0.
func (q *queue) await(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		select {
		case <-q.ready:
			return true
		case <-ctx.Done():
			return false
		}
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-q.ready:
		return true
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// stored gives back the room of a segment that is stored, and its buffer.
func (q *queue) stored(s segment) {
	q.mu.Lock()
	q.bytes -= len(s.data)
	if cap(s.data) == q.maxChunk && len(q.free) < q.limit/q.maxChunk {
		q.free = append(q.free, s.data)
	}
	q.mu.Unlock()
	q.release(len(s.data))
	signal(q.space)
}

// drop gives back the room of all that was not stored.
func (q *queue) drop() {
	q.mu.Lock()
	n := q.bytes
	q.bytes, q.segs, q.closed = 0, nil, true
	q.mu.Unlock()
	q.release(n)
}

func (q *queue) release(n int) {
	if q.budget != nil && n > 0 {
		q.budget.Release(int64(n))
	}
}
