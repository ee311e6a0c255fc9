// Package wire frames the messages between a toolbox and its callers: a big-endian uint32 length, then that many bytes of
// protobuf. It also holds the one error that crosses the connection.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"
)

// MaxMessage is the most bytes of one encoded message, its length not counted.
const MaxMessage = 1 << 20

// readStep bounds what is set aside for a peer that announced a long message and has not sent it yet.
const readStep = 64 << 10

const header = 4

var (
	// ErrTooLarge: the message is over MaxMessage. On Read the rest of the stream cannot be used.
	ErrTooLarge = errors.New("message is over 1 MiB")
	// ErrMalformed: the frame is whole, but not a message of the wanted type.
	ErrMalformed = errors.New("malformed message")
)

// buffers are reused so that a long stream of chunks costs no garbage. A buffer never outlives the call that took it.
var buffers = sync.Pool{New: func() any {
	b := make([]byte, 0, header+readStep)
	return &b
}}

// Write sends m as one frame with one call of w.Write. ErrTooLarge leaves w untouched; after any other error a part of the
// frame may have been written and w is of no more use.
func Write(w io.Writer, m proto.Message) error {
	size := proto.Size(m)
	if size > MaxMessage {
		return ErrTooLarge
	}
	p := buffers.Get().(*[]byte)
	defer buffers.Put(p)
	buf := slices.Grow((*p)[:0], header+size)[:header]
	buf, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(buf, m)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	*p = buf[:0]
	binary.BigEndian.PutUint32(buf, uint32(len(buf)-header))
	if _, err := w.Write(buf); err != nil {
		return fmt.Errorf("write message: %w", err)
	}
	return nil
}

// Read fills m, whose former content is dropped, with the next frame. It is io.EOF where the stream ended between two
// frames, io.ErrUnexpectedEOF where it ended inside one, ErrTooLarge and ErrMalformed as above. m owns its bytes.
func Read(r io.Reader, m proto.Message) error {
	p := buffers.Get().(*[]byte)
	defer buffers.Put(p)
	buf := (*p)[:header]
	if _, err := io.ReadFull(r, buf); err != nil {
		if err == io.EOF {
			return io.EOF
		}
		return fmt.Errorf("read length: %w", err)
	}
	size := int64(binary.BigEndian.Uint32(buf))
	if size > MaxMessage {
		return ErrTooLarge
	}
	buf = buf[:0]
	for want := int(size); len(buf) < want; {
		from := len(buf)
		step := min(want-from, max(readStep, from))
		buf = slices.Grow(buf, step)[:from+step]
		*p = buf[:0]
		if _, err := io.ReadFull(r, buf[from:]); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("read message: %w", err)
		}
	}
	if err := proto.Unmarshal(buf, m); err != nil {
		// The decoder's own text may quote the message.
		return ErrMalformed
	}
	return nil
}
