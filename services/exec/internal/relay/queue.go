package relay

import (
	"context"
	"io"
	"slices"
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

// put adds the next n bytes that src gives, of a stream from offset on, and waits while the queue is full. After an error as many as
// it returns were added.
func (q *queue) put(ctx context.Context, stream uint32, offset uint64, n int, src io.Reader) (added int, err error) {
	for n > 0 {
		part := min(n, q.maxChunk)
		if q.budget != nil {
			if err := q.budget.Acquire(ctx, int64(part)); err != nil {
				return added, err
			}
		}
		if err := q.room(ctx); err != nil {
			q.release(part)
			return added, err
		}
		for left := part; left > 0; {
			to, joins := q.reserve(stream, offset, left)
			if _, err := io.ReadFull(src, to.data); err != nil {
				q.release(left)
				return added, err
			}
			q.commit(to, joins)
			left -= len(to.data)
			added += len(to.data)
			offset += uint64(len(to.data))
		}
		n -= part
	}
	return added, nil
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

// reserve is where the next bytes go, at most n: where joins is true behind those of the last segment, otherwise in a buffer of
// their own. They are no part of the queue until commit; next may take the last segment meanwhile, which does not show them.
func (q *queue) reserve(stream uint32, offset uint64, n int) (s segment, joins bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s = segment{stream: stream, offset: offset}
	if len(q.segs) > 0 {
		last := &q.segs[len(q.segs)-1]
		at := len(last.data)
		if last.gapTo == 0 && last.stream == stream && last.offset+uint64(at) == offset && at < q.maxChunk && !last.first() {
			if at == cap(last.data) {
				last.data = append(q.buffer(min(q.maxChunk, max(2*at, at+n))), last.data...)
			}
			s.data = last.data[at:min(cap(last.data), at+n)]
			return s, true
		}
	}
	size := n
	if q.bytes > 0 {
		// The program is faster than the store: more will follow.
		size = min(4*n, q.maxChunk)
	}
	s.data = q.buffer(size)[:n]
	return s, false
}

// commit adds what reserve gave, filled.
func (q *queue) commit(s segment, joins bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer signal(q.ready)
	q.bytes += len(s.data)
	switch {
	case joins && len(q.segs) > 0:
		last := &q.segs[len(q.segs)-1]
		last.data = last.data[:len(last.data)+len(s.data)]
		return
	case joins:
		// next took the segment, and with it the buffer that these bytes lie in.
		s.data = append(q.buffer(len(s.data)), s.data...)
	}
	q.segs = append(q.segs, s)
}

// reused is from which size on buffers are kept for the next chunk, freeBuffers how many.
const (
	reused      = 16 << 10
	freeBuffers = 2
)

// buffer gives an empty buffer for n bytes.
func (q *queue) buffer(n int) []byte {
	for i, b := range q.free {
		if n >= reused && cap(b) >= n {
			q.free = slices.Delete(q.free, i, i+1)
			return b[:0]
		}
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
	if cap(s.data) >= reused {
		// The smallest go first, so that in the end whole chunks are kept.
		q.free = append(q.free, s.data)
		if len(q.free) > freeBuffers {
			small := slices.IndexFunc(q.free, func(b []byte) bool { return cap(b) < q.maxChunk })
			q.free = slices.Delete(q.free, max(small, 0), max(small, 0)+1)
		}
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
