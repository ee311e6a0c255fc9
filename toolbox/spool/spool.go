// Package spool keeps the output of one program: two streams with absolute byte offsets, in the order in which they were
// written as far as that is known, for any number of readers that come and go.
//
// Each stream keeps its first bytes (the head, half of the cap) and its last bytes (the tail, the other half). Up to the cap
// that is everything. Over it, what falls out between head and tail is gone; the totals stay exact. A reader that is
// attached holds the writer back, so that it gets everything however long the output is; memory and disk stay bounded all
// the same. Nothing survives the process: a toolbox that dies takes its sandbox along.
package spool

import (
	"errors"
	"io/fs"
	"os"
	"sync"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

// The streams, numbered as in toolbox.v1.
const (
	Stdout uint32 = 1
	Stderr uint32 = 2
)

const (
	// DefaultCap is the most bytes kept of each stream, DefaultHold how far a writer may be ahead of the furthest reader.
	DefaultCap  = 16 << 20
	DefaultHold = 4 << 20

	// minCap keeps head and tail of a use.
	minCap = 1 << 10
	// maxPiece bounds one write; longer ones are split so that readers and writers take turns.
	maxPiece = 256 << 10
	// memoryBytes of each stream are kept in memory before a file is made: most programs print less.
	memoryBytes = 8 << 10
)

// ErrEnded: the output has ended, nothing can be added.
var ErrEnded = errors.New("output has ended")

// Options of a Spool. Zero values are the defaults above.
type Options struct {
	// Dir is where the files stdout and stderr go, each at most Cap bytes; its parent exists. They are made, and Dir, when the output
	// no longer fits in memory. Where that fails, or a write does, the bytes are dropped and counted as a gap.
	Dir string
	// Files makes them instead where it is not nil: without a name, and held open until Remove.
	Files Files
	// Cap is the most bytes kept of each stream, at least 1 KiB.
	Cap uint64
	// Hold is how many bytes of a stream may be written that the furthest attached reader has not taken; more blocks the
	// writer. A reader behind the furthest is not waited for and may be overrun: it gets a Skip. At most a quarter of Cap, so that what is already in a pipe finds room after Release.
	Hold uint64
}

// Files are places for output that are no files of a directory.
type Files interface {
	// Create makes an empty file for at most size bytes.
	Create(name string, size uint64) (*os.File, error)
	// Removed says that one is closed for good.
	Removed(size uint64)
}

// Spool is the output of one program. Its methods may be called concurrently; Appends of one stream go one after another.
type Spool struct {
	dir  string
	hold uint64

	mu      sync.Mutex
	streams [2]stream
	order   order
	readers []*Reader
	// released: readers no longer hold the writer back. ended: no more output. removed: nothing is left to read.
	released, ended, removed bool
}

// New returns an empty spool.
func New(o Options) *Spool {
	if o.Cap == 0 {
		o.Cap = DefaultCap
	}
	if o.Hold == 0 {
		o.Hold = DefaultHold
	}
	o.Cap = max(o.Cap, minCap)
	p := &Spool{dir: o.Dir, hold: max(2, min(o.Hold, o.Cap/4))}
	for i, name := range []string{"stdout", "stderr"} {
		p.streams[i] = newStream(name, o.Cap)
		p.streams[i].files = o.Files
	}
	return p
}

func (p *Spool) stream(id uint32) *stream {
	if id == Stderr {
		return &p.streams[1]
	}
	return &p.streams[0]
}

// Append adds data to a stream; data may be reused afterwards. It blocks while an attached reader is too far behind, and is
// ErrEnded once End was called, also when that happens while it blocks. Output that cannot be stored is dropped and counted,
// never an error: a full disk must not change what the program sees.
func (p *Spool) Append(stream uint32, data []byte) error {
	s := p.stream(stream)
	s.writing.Lock()
	defer s.writing.Unlock()
	for len(data) > 0 {
		n := min(len(data), maxPiece, int(p.hold/2))
		slot, err := p.reserve(s, uint64(n))
		if err != nil {
			return err
		}
		stored := true
		if !slot.inMemory {
			had := slot.file
			slot.file, err = s.write(p.dir, slot, data[:n])
			stored, slot.made = err == nil, slot.file != had
		}
		if err := p.publish(stream, s, data[:n], slot, stored); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// slot is where the next piece goes: memory, or a file, nil where there is none yet, that begins with what memory holds.
type slot struct {
	inMemory bool
	file     *os.File
	// made: the file is new, nobody else knows it.
	made   bool
	memory []byte
}

// reserve waits until n more bytes may be written and gives up the oldest bytes of the tail for them.
func (p *Spool) reserve(s *stream, n uint64) (slot, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.ended && p.held(s, n) {
		p.mu.Unlock()
		<-s.room
		p.mu.Lock()
	}
	if p.ended {
		return slot{}, ErrEnded
	}
	if s.total+n > s.head+s.tail {
		s.evict(s.total + n - s.tail)
	}
	fits := !s.onDisk && !s.memoryFull && s.total+n <= min(memoryBytes, s.head+s.tail)
	return slot{inMemory: fits, file: s.file, memory: s.memory}, nil
}

// held says whether the furthest attached reader is too far behind for n more bytes.
func (p *Spool) held(s *stream, n uint64) bool {
	if p.released || len(p.readers) == 0 {
		return false
	}
	var furthest uint64
	for _, r := range p.readers {
		furthest = max(furthest, r.position(s))
	}
	return s.total+n > furthest+p.hold && s.total > furthest
}

// publish lets readers see what was written. Bytes that were not stored become a gap.
func (p *Spool) publish(id uint32, s *stream, data []byte, at slot, stored bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		if at.made {
			_ = s.discard(at.file)
		}
		return ErrEnded
	}
	switch {
	case at.inMemory:
		s.memory = append(s.memory, data...)
	case stored:
		s.memory, s.onDisk, s.file = nil, true, at.file
	}
	from := s.total
	s.total += uint64(len(data))
	if !stored {
		s.memoryFull = true
		s.lost.add(from, s.total)
		s.drop(from, s.total)
	}
	p.order.add(id, from, s.total)
	if p.order.full() {
		p.order.compact(func(id uint32, from uint64) uint64 { return p.stream(id).readable(from) })
	}
	p.wakeReaders()
	return nil
}

// Release stops readers from holding the writer back. It is for the time between the end of a program and the end of its
// output: what is left in the pipes must not wait for a reader that has stalled.
func (p *Spool) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released = true
	p.wakeWriters()
}

// End says that no more output comes. Readers get what is kept, then io.EOF.
func (p *Spool) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end()
}

func (p *Spool) end() {
	p.ended = true
	p.wakeReaders()
	p.wakeWriters()
	p.closeIdle()
}

// Trim discards what lies below the offsets, because it is stored elsewhere. Readers below get a Skip.
func (p *Spool) Trim(stdout, stderr uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams[0].trim(stdout)
	p.streams[1].trim(stderr)
}

// Remove ends the output and deletes the files. Readers get fs.ErrClosed.
func (p *Spool) Remove() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removed = true
	p.end()
	var errs []error
	for i := range p.streams {
		errs = append(errs, p.streams[i].remove(p.dir))
	}
	return errors.Join(errs...)
}

// Bytes is how much was written to each stream, kept or not.
func (p *Spool) Bytes() (stdout, stderr uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.streams[0].total, p.streams[1].total
}

// StreamEnd sums up one stream: its bytes, and those among them that went without any reader having been given them, as ranges
// in rising order. Over 64 ranges neighbours are joined; dropped_bytes stays exact.
func (p *Spool) StreamEnd(stream uint32) *toolboxv1.StreamEnd {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stream(stream)
	e := &toolboxv1.StreamEnd{Bytes: s.total, DroppedBytes: s.dropped}
	for _, g := range s.gaps {
		e.Gaps = append(e.Gaps, &toolboxv1.Gap{From: g.from, To: g.to})
	}
	return e
}

func (p *Spool) wakeReaders() {
	for _, r := range p.readers {
		signal(r.more)
	}
}

func (p *Spool) wakeWriters() {
	for i := range p.streams {
		signal(p.streams[i].room)
	}
}

// closeIdle gives back the descriptors of an ended spool that nobody reads; Reader opens the files again.
func (p *Spool) closeIdle() {
	if !p.ended || len(p.readers) > 0 {
		return
	}
	for i := range p.streams {
		p.streams[i].close()
	}
}

// open makes sure that the files of an ended spool are open.
func (p *Spool) open() error {
	if p.removed {
		return fs.ErrClosed
	}
	for i := range p.streams {
		if err := p.streams[i].reopen(p.dir); err != nil {
			return err
		}
	}
	return nil
}

// signal marks a channel of capacity one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
