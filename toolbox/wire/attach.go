package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

const (
	// large is from how many bytes on output is sent and received without a copy.
	large = 4 << 10
	// prefix is the most bytes that stand before the output in its frame, the length not counted: four tags and five numbers.
	prefix = 64
)

// The fields that lead to a piece of output: Response.attach, AttachEvent.data, and those of Data.
const (
	fieldAttach = 12
	fieldEvent  = 1
	fieldStream = 1
	fieldOffset = 2
	fieldData   = 3
)

// WriteAttach sends an event of an Attach as Write does, but gives large output to w from where it lies.
func WriteAttach(w io.Writer, e *toolboxv1.AttachEvent) error {
	d := e.GetData()
	if len(d.GetData()) < large {
		return Write(w, &toolboxv1.Response{Answer: &toolboxv1.Response_Attach{Attach: e}})
	}
	inner := protowire.AppendTag(make([]byte, 0, prefix), fieldStream, protowire.VarintType)
	inner = protowire.AppendVarint(inner, uint64(d.GetStream()))
	inner = protowire.AppendTag(inner, fieldOffset, protowire.VarintType)
	inner = protowire.AppendVarint(inner, d.GetOffset())
	inner = protowire.AppendTag(inner, fieldData, protowire.BytesType)
	inner = protowire.AppendVarint(inner, uint64(len(d.GetData())))
	size := uint64(len(inner) + len(d.GetData()))

	head := make([]byte, header, header+prefix)
	head = protowire.AppendTag(head, fieldAttach, protowire.BytesType)
	head = protowire.AppendVarint(head, uint64(protowire.SizeTag(fieldEvent)+protowire.SizeVarint(size))+size)
	head = protowire.AppendTag(head, fieldEvent, protowire.BytesType)
	head = protowire.AppendVarint(head, size)
	head = append(head, inner...)
	total := len(head) - header + len(d.GetData())
	if total > MaxMessage {
		return ErrTooLarge
	}
	binary.BigEndian.PutUint32(head, uint32(total))
	frame := net.Buffers{head, d.GetData()}
	if _, err := frame.WriteTo(w); err != nil {
		return fmt.Errorf("write message: %w", err)
	}
	return nil
}

// Events reads the answers to an Attach and leaves the bytes of output to the caller, who reads them to where they are needed.
type Events struct {
	br *bufio.Reader
	// left is how many bytes of the last event's output were not read yet; they are in held where that is not nil.
	left int
	held []byte

	// res and what it points to are given out for output, over and over.
	res  *toolboxv1.Response
	data *toolboxv1.Data
}

// NewEvents reads from r, also ahead.
func NewEvents(r io.Reader) *Events {
	e := &Events{br: bufio.NewReaderSize(r, large), data: &toolboxv1.Data{}}
	event := &toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_Data{Data: e.data}}
	e.res = &toolboxv1.Response{Answer: &toolboxv1.Response_Attach{Attach: event}}
	return e
}

// Next reads the next response. Output comes without its bytes: n of them follow, to be read before the next call, which skips
// the rest. The response is valid until then. Errors are those of Read.
func (e *Events) Next() (res *toolboxv1.Response, n int, err error) {
	if e.left > 0 {
		if _, err := io.Copy(io.Discard, e); err != nil {
			return nil, 0, err
		}
	}
	var length [header]byte
	if _, err := io.ReadFull(e.br, length[:]); err != nil {
		if err == io.EOF {
			return nil, 0, io.EOF
		}
		return nil, 0, fmt.Errorf("read length: %w", err)
	}
	size := int64(binary.BigEndian.Uint32(length[:]))
	if size > MaxMessage {
		return nil, 0, ErrTooLarge
	}
	b, err := e.br.Peek(int(min(size, prefix)))
	if err != nil {
		return nil, 0, unexpected(err)
	}
	if at, ok := output(b, int(size), e.data); ok {
		_, _ = e.br.Discard(at) // it is in the buffer
		e.left = int(size) - at
		return e.res, e.left, nil
	}
	return e.whole(int(size))
}

// whole reads a response of any kind.
func (e *Events) whole(size int) (*toolboxv1.Response, int, error) {
	var buf []byte
	for len(buf) < size {
		from := len(buf)
		step := min(size-from, max(readStep, from))
		buf = slices.Grow(buf, step)[:from+step]
		if _, err := io.ReadFull(e.br, buf[from:]); err != nil {
			return nil, 0, unexpected(err)
		}
	}
	var res toolboxv1.Response
	if err := proto.Unmarshal(buf, &res); err != nil {
		// The decoder's own text may quote the message.
		return nil, 0, ErrMalformed
	}
	if d := res.GetAttach().GetData(); len(d.GetData()) > 0 {
		e.held, e.left, d.Data = d.Data, len(d.Data), nil
	}
	return &res, e.left, nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read message: %w", err)
}

// Read gives the bytes of the output that Next told of, io.EOF behind them.
func (e *Events) Read(p []byte) (n int, err error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	p = p[:min(len(p), e.left)]
	if e.held != nil {
		n = copy(p, e.held)
		e.held = e.held[n:]
	} else if n, err = e.br.Read(p); err != nil {
		err = unexpected(err)
	}
	if e.left -= n; e.left == 0 {
		e.held = nil
	}
	return n, err
}

// output reads the beginning b of a message of the given size into d, its bytes apart, and says where these begin. False: it is
// another message, or another encoder wrote it in another order.
func output(b []byte, size int, d *toolboxv1.Data) (at int, ok bool) {
	field := func(wire protowire.Type) (num protowire.Number, value uint64) {
		num, typ, n := protowire.ConsumeTag(b[at:])
		if n < 0 || typ != wire && wire >= 0 {
			return 0, 0
		}
		at += n
		if typ != protowire.VarintType && typ != protowire.BytesType {
			return 0, 0
		}
		value, n = protowire.ConsumeVarint(b[at:])
		if n < 0 {
			return 0, 0
		}
		at += n
		return num, value
	}
	for _, outer := range []protowire.Number{fieldAttach, fieldEvent} {
		if num, length := field(protowire.BytesType); num != outer || uint64(at)+length != uint64(size) {
			return 0, false
		}
	}
	d.Stream, d.Offset = 0, 0
	for {
		switch num, value := field(-1); num {
		case fieldStream:
			d.Stream = uint32(value)
		case fieldOffset:
			d.Offset = value
		case fieldData:
			return at, uint64(at)+value == uint64(size)
		default:
			return 0, false
		}
	}
}
