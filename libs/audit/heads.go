package audit

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// head is the end of an aggregate's history so far, as it lies in the table: fixed offsets of 96 bytes.
type head []byte

const (
	keySize  = 16
	slotSize = 96

	atDigest = keySize
	atBefore = atDigest + sha256.Size
	atSeq    = atBefore + sha256.Size
	atPrior  = atSeq + 8
)

// digest of the aggregate's last event, before that of the one before it.
func (h head) digest() []byte { return h[atDigest:atBefore] }
func (h head) before() []byte { return h[atBefore:atSeq] }

// seq of the last event, prior of the one before it; 0 where there is none.
func (h head) seq() uint64   { return binary.LittleEndian.Uint64(h[atSeq:]) }
func (h head) prior() uint64 { return binary.LittleEndian.Uint64(h[atPrior:]) }

// move makes another event the last one.
func (h head) move(seq uint64, digest []byte) {
	copy(h.before(), h.digest())
	copy(h.digest(), digest)
	binary.LittleEndian.PutUint64(h[atPrior:], h.seq())
	binary.LittleEndian.PutUint64(h[atSeq:], seq)
}

// heads is a table of the heads of all aggregates by the hashes of their subjects. It begins in memory; one that grows beyond
// inMemory is a mapped file of no name, whose pages the system writes out where memory is short: millions of aggregates take up address
// space and disk, not memory that cannot be given back.
type heads struct {
	slots  []byte
	mapped bool
	mask   uint64
	n      uint64
	dir    string
}

const (
	firstSlots = 1 << 12
	// inMemory is the largest table that is not a file, in slots: 12 MiB.
	inMemory = 1 << 17
)

// newHeads puts its file, if it needs one, into dir; "" is the system's directory for temporary files.
func newHeads(dir string) *heads {
	return &heads{slots: make([]byte, firstSlots*slotSize), mask: firstSlots - 1, dir: dir}
}

// of gives the head of a subject, an empty one with seq 0 where there is none yet. It is valid until the next call.
func (t *heads) of(subject string) (head, error) {
	sum := sha256.Sum256([]byte(subject))
	h := t.find(sum[:keySize])
	if h.seq() != 0 {
		return h, nil
	}
	// Two thirds full is the most that keeps searches short.
	if t.n++; t.n*3 > (t.mask+1)*2 {
		if err := t.grow(); err != nil {
			return nil, err
		}
		h = t.find(sum[:keySize])
	}
	copy(h, sum[:keySize])
	return h, nil
}

func (t *heads) find(key []byte) head {
	for at := binary.LittleEndian.Uint64(key) & t.mask; ; at = (at + 1) & t.mask {
		h := head(t.slots[at*slotSize : (at+1)*slotSize : (at+1)*slotSize])
		if h.seq() == 0 || string(h[:keySize]) == string(key) {
			return h
		}
	}
}

func (t *heads) grow() error {
	old := *t
	slots := (t.mask + 1) * 2
	bytes, mapped, err := t.room(int(slots * slotSize)) //nolint:gosec // a size of memory
	if err != nil {
		return fmt.Errorf("make room for %d aggregates: %w", t.n, err)
	}
	t.slots, t.mapped, t.mask = bytes, mapped, slots-1
	for at := 0; at < len(old.slots); at += slotSize {
		if h := head(old.slots[at : at+slotSize]); h.seq() != 0 {
			copy(t.find(h[:keySize]), h)
		}
	}
	old.close()
	return nil
}

func (t *heads) room(size int) ([]byte, bool, error) {
	if size <= inMemory*slotSize {
		return make([]byte, size), false, nil
	}
	f, err := os.CreateTemp(t.dir, "sandtrail-heads-")
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = f.Close() }()
	if err := os.Remove(f.Name()); err != nil {
		return nil, false, err
	}
	// Without the blocks behind it a full disk would be a fault of memory, which ends the process.
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(size)); err != nil {
		return nil, false, err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return b, err == nil, err
}

// close gives the table's room back; it may be called twice.
func (t *heads) close() {
	if t.mapped {
		_ = unix.Munmap(t.slots)
	}
	t.slots, t.mapped = nil, false
}
