// Package outputcodec is gRPC's protobuf codec for both ends of a stream of output. On the wire nothing differs; the bytes of an
// exec's output are sent from where they lie, and received with one copy instead of two and a cleared buffer.
package outputcodec

import (
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

const (
	// least is from how many bytes of output on it is worth it.
	least = 4 << 10
	// head is room for all that stands before the bytes of output.
	head = 64

	// ExecEvent.stdout, ExecEvent.stderr, and the data of both.
	fieldStdout = 1
	fieldStderr = 2
	fieldData   = 1
)

type codec struct{ encoding.CodecV2 }

// New is the codec, for grpc.ForceServerCodecV2 and grpc.ForceCodecV2. A message with output must not be changed once it was sent,
// also not its bytes: the connection may not have written them yet. Marshal itself changes it for a moment.
// Received into a message that holds output already, new output takes the place of the old in the same bytes.
func New() encoding.CodecV2 { return codec{encoding.GetCodecV2(grpcproto.Name)} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	e, ok := v.(*computev1.ExecEvent)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	field, data := protowire.Number(fieldStdout), e.GetStdout().GetData()
	if e.GetStderr() != nil {
		field, data = fieldStderr, e.GetStderr().GetData()
	}
	if len(data) < least {
		return c.CodecV2.Marshal(v)
	}
	// All but the output, whatever else an event may hold some day.
	event := e.Event
	e.Event = nil
	b, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, 0, head), e)
	e.Event = event
	if err != nil {
		return nil, err
	}
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(protowire.SizeTag(fieldData)+protowire.SizeBytes(len(data))))
	b = protowire.AppendTag(b, fieldData, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(len(data)))
	return mem.BufferSlice{mem.SliceBuffer(b), mem.SliceBuffer(data)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(b mem.BufferSlice, v any) error {
	e, ok := v.(*computev1.ExecEvent)
	if !ok || b.Len() < least || !unmarshal(b, e) {
		return c.CodecV2.Unmarshal(b, v)
	}
	return nil
}

// unmarshal reads an event that ends with the bytes of its output, as Marshal writes them. False: it is another one, or another
// encoder wrote it.
func unmarshal(b mem.BufferSlice, e *computev1.ExecEvent) bool {
	begin := b[0].ReadOnlyData()
	begin = begin[:min(len(begin), 4*head)]
	rest := b.Len()
	for at := 0; ; {
		num, typ, tag := protowire.ConsumeTag(begin[at:])
		if tag < 0 {
			return false
		}
		if num != fieldStdout && num != fieldStderr {
			n := protowire.ConsumeFieldValue(num, typ, begin[at+tag:])
			if n < 0 {
				return false
			}
			at += tag + n
			continue
		}
		from, ok := within(begin, at+tag, rest)
		if !ok || typ != protowire.BytesType {
			return false
		}
		data := e.GetStdout().GetData()
		if num == fieldStderr {
			data = e.GetStderr().GetData()
		}
		if proto.Unmarshal(begin[:at], e) != nil {
			return false
		}
		if cap(data) < rest-from {
			data = make([]byte, rest-from)
		}
		data = data[:rest-from]
		copyFrom(data, b, from)
		if num == fieldStderr {
			e.Event = &computev1.ExecEvent_Stderr{Stderr: &computev1.StderrLine{Data: data}}
		} else {
			e.Event = &computev1.ExecEvent_Stdout{Stdout: &computev1.StdoutLine{Data: data}}
		}
		return true
	}
}

// within reads the lengths of a line and of its data, which begin at at and both reach to the end.
func within(begin []byte, at, end int) (from int, ok bool) {
	length, n := protowire.ConsumeVarint(begin[at:])
	if n < 0 || uint64(at+n)+length != uint64(end) {
		return 0, false
	}
	at += n
	num, typ, n := protowire.ConsumeTag(begin[at:])
	if n < 0 || num != fieldData || typ != protowire.BytesType {
		return 0, false
	}
	at += n
	length, n = protowire.ConsumeVarint(begin[at:])
	return at + n, n > 0 && uint64(at+n)+length == uint64(end)
}

// copyFrom fills to with the bytes of b from an offset on.
func copyFrom(to []byte, b mem.BufferSlice, from int) {
	for _, piece := range b {
		d := piece.ReadOnlyData()
		skip := min(from, len(d))
		from -= skip
		to = to[copy(to, d[skip:]):]
	}
}
