package grpcapi

import (
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sandtrail/sandtrail/libs/fault"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// Numbers of unknown fields that no message has: the last ones that protobuf allows.
const (
	markUnreadable = protowire.MaxValidNumber
	markTooLarge   = protowire.MaxValidNumber - 1
)

// codec reads requests of the service without ever failing: gRPC answers a failure itself, and without details, before any
// interceptor is asked. A request that cannot be read becomes an empty one with a mark, which legible finds. A caller who sends
// such a mark itself is refused as well and has won nothing.
type codec struct{ encoding.CodecV2 }

func (c codec) Unmarshal(b mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok || m.ProtoReflect().Descriptor().ParentFile().Package() != computev1.File_compute_v1_compute_proto.Package() {
		return c.CodecV2.Unmarshal(b, v)
	}
	var mark []byte
	if b.Len() > maxMessage {
		mark = protowire.AppendVarint(protowire.AppendTag(nil, markTooLarge, protowire.VarintType), uint64(b.Len()))
	} else if c.CodecV2.Unmarshal(b, v) != nil {
		mark = protowire.AppendBytes(protowire.AppendTag(nil, markUnreadable, protowire.BytesType), b.Materialize())
	}
	if mark != nil {
		proto.Reset(m)
		m.ProtoReflect().SetUnknown(mark)
	}
	return nil
}

// legible is the refusal of a request that the codec could not read.
func legible(m protoreflect.Message) error {
	num, _, n := protowire.ConsumeTag(m.GetUnknown())
	switch {
	case n < 0:
		return nil
	case num == markTooLarge:
		return fault.Newf(fault.ResourceExhausted, fault.ReasonTooLarge, "a request has at most %d bytes; send a file in parts", maxMessage)
	case num != markUnreadable:
		return nil
	}
	raw, _ := protowire.ConsumeBytes(m.GetUnknown()[n:])
	e := fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request cannot be read as "+string(m.Descriptor().FullName()))
	if path := notText(m.Descriptor(), raw); path != "" {
		e = e.WithFields(map[string]string{path: "is not valid UTF-8"})
	}
	return e
}

// notText is the path of the first string in an encoded message that is no UTF-8, empty where something else is wrong with it.
func notText(of protoreflect.MessageDescriptor, b []byte) string {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return ""
		}
		size := protowire.ConsumeFieldValue(num, typ, b[n:])
		if size < 0 {
			return ""
		}
		value := b[n : n+size]
		b = b[n+size:]
		f := of.Fields().ByNumber(num)
		if f == nil || typ != protowire.BytesType {
			continue
		}
		inner, _ := protowire.ConsumeBytes(value)
		switch {
		case f.Kind() == protoreflect.StringKind && !utf8.Valid(inner):
			return string(f.Name())
		case f.IsMap():
			if notText(f.Message(), inner) != "" {
				return string(f.Name())
			}
		case f.Kind() == protoreflect.MessageKind:
			if below := notText(f.Message(), inner); below != "" {
				return string(f.Name()) + "." + below
			}
		}
	}
	return ""
}
