package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// stream is one of the two. Byte o lies in the file at o while it belongs to the head or the first round of the tail, later
// at a place in the tail that is used again round by round. All but writing is guarded by the spool's lock.
type stream struct {
	name string
	// files may be nil: then the file has a name in the spool's directory.
	files Files
	// head and tail are their sizes in bytes.
	head, tail uint64

	// writing serializes Appends. The file is written under it and without the spool's lock, so that a slow disk does not
	// stop the readers.
	writing sync.Mutex
	room    chan struct{}

	total uint64
	// oldest is the first byte of the tail that is still there.
	oldest uint64
	// trimmed: everything below is gone by request. taken: everything below was given to some reader.
	trimmed, taken uint64
	// lost ranges were never stored; gaps are what no reader was given, dropped their sum.
	lost, gaps ranges
	dropped    uint64

	memory []byte
	// memoryFull: a write failed, memory holds only the beginning.
	memoryFull, onDisk bool
	file               *os.File
}

func newStream(name string, capacity uint64) stream {
	head := capacity / 2
	return stream{name: name, head: head, tail: capacity - head, oldest: head, room: make(chan struct{}, 1)}
}

// evict gives up the tail below to.
func (s *stream) evict(to uint64) {
	if to <= s.oldest {
		return
	}
	from := max(s.oldest, s.taken)
	// What was lost is counted already.
	for from < to {
		end := to
		if l, ok := s.lost.at(from); ok {
			from = min(l.to, to)
			continue
		}
		if l, ok := s.lost.after(from); ok {
			end = min(end, l.from)
		}
		s.drop(from, end)
		from = end
	}
	s.oldest = to
}

func (s *stream) drop(from, to uint64) {
	if from < to {
		s.dropped += to - from
		s.gaps.add(from, to)
	}
}

// readable is the first offset from o on that can be read, total where there is none.
func (s *stream) readable(o uint64) uint64 {
	for o < s.total {
		l, isLost := s.lost.at(o)
		switch {
		case o < s.trimmed:
			o = s.trimmed
		case o >= s.head && o < s.oldest:
			o = s.oldest
		case isLost:
			o = l.to
		default:
			return o
		}
	}
	return s.total
}

// extent is how many bytes can be read from the readable offset o on, up to to, in one piece.
func (s *stream) extent(o, to uint64) uint64 {
	if o < s.head && s.oldest > s.head {
		to = min(to, s.head)
	}
	if l, ok := s.lost.after(o); ok {
		to = min(to, l.from)
	}
	return to - o
}

// place is where byte o lies in the file, and how many bytes follow it there before the tail begins anew.
func (s *stream) place(o uint64) (at int64, follow uint64) {
	size := s.head + s.tail
	if o >= size {
		o = s.head + (o-s.head)%s.tail
	}
	return int64(o), size - o
}

// write stores data at the end of the stream, and before it what was in memory until now. It returns the file, which it makes
// where there is none; after an error nothing counts as written. The caller holds writing, which is enough: readers look at
// these places only after publish, and drop what they read where evict came in between.
func (s *stream) write(dir string, at slot, data []byte) (*os.File, error) {
	f := at.file
	if f == nil {
		var err error
		f, err = s.create(dir)
		if err != nil {
			return nil, err
		}
		if _, err := f.WriteAt(at.memory, 0); err != nil {
			return nil, errors.Join(err, s.discard(f))
		}
	}
	for o := s.total; len(data) > 0; {
		place, follow := s.place(o)
		n := int(min(uint64(len(data)), follow))
		if _, err := f.WriteAt(data[:n], place); err != nil {
			if at.file == nil {
				return nil, errors.Join(err, s.discard(f))
			}
			return f, err
		}
		o, data = o+uint64(n), data[n:]
	}
	return f, nil
}

// read fills buf with the bytes from o on.
func read(f *os.File, s *stream, buf []byte, o uint64) error {
	for len(buf) > 0 {
		at, follow := s.place(o)
		n := int(min(uint64(len(buf)), follow))
		if _, err := f.ReadAt(buf[:n], at); err != nil {
			return fmt.Errorf("read %s of the spool: %w", s.name, err)
		}
		o, buf = o+uint64(n), buf[n:]
	}
	return nil
}

// trim gives the disk blocks of the head back. The tail is used again anyway.
func (s *stream) trim(to uint64) {
	to = min(to, s.total)
	if to <= s.trimmed {
		return
	}
	s.trimmed, s.taken = to, max(s.taken, to)
	if s.file != nil {
		// Only saves space, so it may fail. Nothing is ever written below trimmed in the head.
		_ = unix.Fallocate(int(s.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(min(to, s.head)))
	}
}

func (s *stream) reopen(dir string) error {
	if !s.onDisk || s.file != nil {
		return nil
	}
	f, err := os.Open(filepath.Join(dir, s.name))
	if err != nil {
		return fmt.Errorf("open spool: %w", err)
	}
	s.file = f
	return nil
}

// close gives the descriptor back where the file can be opened again.
func (s *stream) close() {
	if s.file != nil && s.files == nil {
		s.file.Close()
		s.file = nil
	}
}

func (s *stream) create(dir string) (*os.File, error) {
	if s.files != nil {
		return s.files.Create(s.name, s.head+s.tail)
	}
	return create(dir, s.name)
}

// discard closes a file that was made and is not used.
func (s *stream) discard(f *os.File) error {
	if s.files != nil {
		defer s.files.Removed(s.head + s.tail)
	}
	return f.Close()
}

func (s *stream) remove(dir string) error {
	s.memory = nil
	if s.files != nil {
		f := s.file
		if f == nil {
			return nil
		}
		s.file = nil
		return s.discard(f)
	}
	s.close()
	err := os.Remove(filepath.Join(dir, s.name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// create makes a file and, for the first one, its directory: most programs write too little to need any, and making a directory
// takes longer than starting them.
func create(dir, name string) (*os.File, error) {
	const flags = os.O_RDWR | os.O_CREATE | os.O_TRUNC
	f, err := os.OpenFile(filepath.Join(dir, name), flags, 0o600)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return os.OpenFile(filepath.Join(dir, name), flags, 0o600)
}
