package spool

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"slices"
)

// Piece is what a reader gets next: Data at Offset, or, where Data is empty, the range from Offset to SkipTo that is no longer
// there.
type Piece struct {
	Stream uint32
	Offset uint64
	Data   []byte
	SkipTo uint64
}

// Reader follows the output from two offsets on. It belongs to one goroutine. While it is open it may hold the writer back,
// so it must be closed.
type Reader struct {
	spool *Spool
	more  chan struct{}
	// at is the next offset of each stream. Guarded by the spool's lock.
	at [2]uint64
	// hint is a run before which all is read, as of version.
	hint    int
	version uint64
}

// Reader attaches a reader. Offsets beyond what was written are fine: nothing comes until the output has got there. It fails
// only where the spool was removed or its files cannot be opened.
func (p *Spool) Reader(stdout, stderr uint64) (*Reader, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.open(); err != nil {
		return nil, err
	}
	r := &Reader{spool: p, more: make(chan struct{}, 1), at: [2]uint64{stdout, stderr}}
	p.readers = append(p.readers, r)
	for i := range p.streams {
		s := &p.streams[i]
		s.taken = max(s.taken, min(r.at[i], s.total))
	}
	return r, nil
}

// Close detaches the reader. It may be called more than once.
func (r *Reader) Close() {
	p := r.spool
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readers = slices.DeleteFunc(p.readers, func(o *Reader) bool { return o == r })
	p.wakeWriters()
	p.closeIdle()
}

// position is how far the reader has got in s.
func (r *Reader) position(s *stream) uint64 {
	if s == &r.spool.streams[1] {
		return r.at[1]
	}
	return r.at[0]
}

// Next returns what comes next, read into buf, and waits for it where nothing is there yet; io.EOF behind the end of both
// streams, the context's error when that ends first, fs.ErrClosed once the spool was removed. Data lies in buf.
func (r *Reader) Next(ctx context.Context, buf []byte) (Piece, error) {
	if len(buf) == 0 {
		return Piece{}, fmt.Errorf("read the spool: %w", io.ErrShortBuffer)
	}
	for {
		piece, ok, err := r.poll(buf)
		if ok || err != nil {
			return piece, err
		}
		select {
		case <-r.more:
		case <-ctx.Done():
			return Piece{}, ctx.Err()
		}
	}
}

// poll is Next without the wait. False: nothing is there now.
func (r *Reader) poll(buf []byte) (Piece, bool, error) {
	p := r.spool
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.removed {
			return Piece{}, false, fs.ErrClosed
		}
		id, to := r.next()
		if id == 0 {
			if p.ended {
				return Piece{}, false, io.EOF
			}
			return Piece{}, false, nil
		}
		s, at := p.stream(id), &r.at[id-1]
		from := *at
		if start := min(s.readable(from), to); start > from {
			r.advance(s, at, start)
			return Piece{Stream: id, Offset: from, SkipTo: start}, true, nil
		}
		data := buf[:min(uint64(len(buf)), s.extent(from, to))]
		if !s.onDisk {
			copy(data, s.memory[from:])
		} else {
			f := s.file
			p.mu.Unlock()
			err := read(f, s, data, from)
			p.mu.Lock()
			if p.removed {
				continue
			}
			if s.readable(from) != from {
				// The writer came around the tail meanwhile: what was read may be new bytes.
				continue
			}
			if err != nil {
				return Piece{}, false, err
			}
		}
		r.advance(s, at, from+uint64(len(data)))
		return Piece{Stream: id, Offset: from, Data: data}, true, nil
	}
}

// next is the stream to go on with and how far; 0 where nothing is there. A range that no run covers was dropped: it is
// skipped up to the run behind it.
func (r *Reader) next() (stream uint32, to uint64) {
	p := r.spool
	if r.version != p.order.version {
		r.hint, r.version = 0, p.order.version
	}
	for ; r.hint < len(p.order.runs); r.hint++ {
		run := p.order.runs[r.hint]
		if run.to > r.at[run.stream-1] {
			return run.stream, run.to
		}
	}
	for i := range p.streams {
		if p.streams[i].total > r.at[i] {
			return uint32(i + 1), p.streams[i].total
		}
	}
	return 0, 0
}

// advance moves the reader to a new offset and lets a writer that waited for it go on.
func (r *Reader) advance(s *stream, at *uint64, to uint64) {
	*at = to
	s.taken = max(s.taken, to)
	signal(s.room)
}
