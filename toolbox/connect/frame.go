package connect

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Between a keeper and its helper travel frames: the number of a connection, a kind with the length of what follows, and that. Neither side
// sends bytes that the other has not asked for or has no place for, so that one connection that nobody reads holds up no other one.
const (
	// chunk is the most bytes of a frame.
	chunk  = 64 << 10
	header = 8
)

type kind byte

// What a keeper says: open a connection to a port, or at port 0 take the next one that comes to the way out; send me a chunk, here is one, close it.
const (
	open kind = iota + 1
	want
	give
	shut
)

// What a helper answers: opened, refused or full to open; a chunk, its end or that there is none to want; taken or broken to give. What
// cannot be written any more leaves what can be read.
const (
	opened kind = iota + 65
	refused
	full
	bytesRead
	ended
	failed
	taken
	broken
)

type frame struct {
	id   uint32
	kind kind
	data []byte
}

// write sends a frame with one call of w.Write.
func write(w io.Writer, f frame) error {
	buf := make([]byte, header, header+len(f.data))
	binary.BigEndian.PutUint32(buf, f.id)
	binary.BigEndian.PutUint32(buf[4:], uint32(f.kind)<<24|uint32(len(f.data))) //nolint:gosec // at most chunk
	_, err := w.Write(append(buf, f.data...))
	return err
}

// read gives the next frame, whose bytes are its own; io.EOF between two.
func read(r io.Reader) (frame, error) {
	var head [header]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return frame{}, err
	}
	rest := binary.BigEndian.Uint32(head[4:])
	f := frame{id: binary.BigEndian.Uint32(head[:]), kind: kind(rest >> 24)}
	n := rest & (1<<24 - 1)
	if n > chunk {
		return frame{}, fmt.Errorf("a frame of %d bytes, of at most %d", n, chunk)
	}
	if n > 0 {
		f.data = make([]byte, n)
		if _, err := io.ReadFull(r, f.data); err != nil {
			return frame{}, io.ErrUnexpectedEOF
		}
	}
	return f, nil
}
