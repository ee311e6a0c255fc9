// Package ends remembers how programs ended once nothing else of them is kept, so that an id is never started a second time. It
// holds a few bytes of each in memory and the rest in a file that has no name: nothing of it outlives the process.
package ends

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"os"
	"path/filepath"
	"sync"

	"google.golang.org/protobuf/proto"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

// Most is how many of the last ends are remembered for sure; twice as many at most.
const Most = 16384

var (
	// ErrUnknown: no end of that id is remembered.
	ErrUnknown = errors.New("no end is remembered")
	// ErrUnreadable: the program has ended, but how could not be stored or read.
	ErrUnreadable = errors.New("the end cannot be read")
)

// Ends is safe for concurrent use.
type Ends struct {
	dir  string
	most int
	seed maphash.Seed

	mu sync.Mutex
	// now takes what comes; before is full and goes with the first end that now has no room for. One file for each end would cost
	// more than all else that an end does.
	now, before *generation
}

// generation is one file. Its index has hashes instead of ids: with a random seed two that are alike do not happen.
type generation struct {
	file *os.File
	size int64
	at   map[uint64]int64
}

// lost is where an end stands that could not be stored.
const lost = -1

// New remembers in a file below dir, which exists by the first Put.
func New(dir string) *Ends { return newOf(dir, Most) }

func newOf(dir string, most int) *Ends {
	return &Ends{dir: dir, most: most, seed: maphash.MakeSeed(), now: &generation{}, before: &generation{}}
}

// Has reports whether the end of an id is remembered, or at least that there was one. It does not touch the disk.
func (e *Ends) Has(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, _, ok := e.find(id)
	return ok
}

func (e *Ends) find(id string) (g *generation, at int64, ok bool) {
	h := maphash.String(e.seed, id)
	for _, g := range []*generation{e.now, e.before} {
		if at, ok := g.at[h]; ok {
			return g, at, true
		}
	}
	return nil, 0, false
}

// Put remembers an end. After an error it is known that there was one, and Get is ErrUnreadable.
func (e *Ends) Put(id string, end *toolboxv1.End) error {
	record, err := encode(id, end)
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.now.at) >= e.most {
		e.before.close()
		e.now, e.before = &generation{}, e.now
	}
	g := e.now
	if g.at == nil {
		g.at = map[uint64]int64{}
	}
	h := maphash.String(e.seed, id)
	g.at[h] = lost
	if err != nil {
		return fmt.Errorf("encode end: %w", err)
	}
	if g.file == nil {
		if g.file, err = unnamed(e.dir); err != nil {
			return fmt.Errorf("make file of ends: %w", err)
		}
	}
	if _, err := g.file.WriteAt(record, g.size); err != nil {
		return fmt.Errorf("store end: %w", err)
	}
	g.at[h] = g.size
	g.size += int64(len(record))
	return nil
}

// Get reads an end. ErrUnknown and ErrUnreadable are in the chain of its errors.
func (e *Ends) Get(id string) (*toolboxv1.End, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	g, at, ok := e.find(id)
	switch {
	case !ok:
		return nil, ErrUnknown
	case at == lost:
		return nil, ErrUnreadable
	}
	end, err := g.read(id, at)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return end, nil
}

// Close lets go of everything.
func (e *Ends) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.now.close()
	e.before.close()
	e.now, e.before = &generation{}, &generation{}
}

func (g *generation) close() {
	if g.file != nil {
		g.file.Close()
	}
}

// A record is the lengths of id and end, two bytes and four, then both.
const header = 6

func encode(id string, end *toolboxv1.End) ([]byte, error) {
	size := proto.Size(end)
	if len(id) > math.MaxUint16 || size > math.MaxUint32 {
		return nil, errors.New("too long")
	}
	b := make([]byte, header, header+len(id)+size)
	binary.BigEndian.PutUint16(b, uint16(len(id)))  //nolint:gosec // checked
	binary.BigEndian.PutUint32(b[2:], uint32(size)) //nolint:gosec // checked
	b = append(b, id...)
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, end)
	if err == nil && len(b) != header+len(id)+size {
		err = errors.New("its size changed")
	}
	return b, err
}

func (g *generation) read(id string, at int64) (*toolboxv1.End, error) {
	var head [header]byte
	if _, err := g.file.ReadAt(head[:], at); err != nil {
		return nil, err
	}
	name, size := int64(binary.BigEndian.Uint16(head[:])), int64(binary.BigEndian.Uint32(head[2:]))
	if at+header+name+size > g.size {
		return nil, errors.New("the record is not whole")
	}
	b := make([]byte, name+size)
	if _, err := g.file.ReadAt(b, at+header); err != nil {
		return nil, err
	}
	if string(b[:name]) != id {
		return nil, errors.New("the record is of another id")
	}
	end := &toolboxv1.End{}
	return end, proto.Unmarshal(b[name:], end)
}

// unnamed is a new file that nobody can open and that is gone with its last descriptor.
func unnamed(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "ends-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(filepath.Clean(f.Name())); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
