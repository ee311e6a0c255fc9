package app_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// rawCodec sends bytes as they are.
type rawCodec struct{ encoding.CodecV2 }

func (c rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.([]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// callRaw makes a call with a request that may be no message at all, and reads its answers to their end.
func callRaw(ctx context.Context, conn *grpc.ClientConn, m protoreflect.MethodDescriptor, req []byte) error {
	name := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, name, grpc.ForceCodecV2(rawCodec{encoding.GetCodecV2(grpcproto.Name)}))
	if err != nil {
		return err
	}
	// A server that has answered already reads no further, which is io.EOF here; the answer says why.
	if err := errors.Join(s.SendMsg(req), s.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for {
		if err := s.RecvMsg(dynamicpb.NewMessage(m.Output())); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// encoded puts a field at the end of an encoded request, below the fields that lead to it.
func encoded(base []byte, y way, value []byte) []byte {
	f := y.last()
	b := protowire.AppendBytes(protowire.AppendTag(nil, f.Number(), protowire.BytesType), value)
	for _, above := range slices.Backward(y[:len(y)-1]) {
		b = protowire.AppendBytes(protowire.AppendTag(nil, above.Number(), protowire.BytesType), b)
	}
	return append(slices.Clone(base), b...)
}

// A request that cannot be read is refused like one that breaks a rule: with all details, and before anything is done.
func TestEveryCallRefusesWhatIsNoRequest(t *testing.T) {
	w := newTable(t)
	const bad = "ab\xff\xfe\x00"
	texts := 0
	for _, m := range methods() {
		base, err := proto.Marshal(w.valid(t, m, w.liveBox, w.liveExec))
		require.NoError(t, err)
		refuse := func(what string, req []byte, field string) {
			t.Helper()
			before := w.state(t)
			err := callRaw(w.as("alice"), w.conn, m, req)
			what = fmt.Sprintf("%s: %s", m.Name(), what)
			require.Equal(t, codes.InvalidArgument, status.Code(err), "%s: %v", what, err)
			d := detail(t, err)
			require.Equal(t, "validation", d.GetReason(), what)
			require.NotContains(t, d.GetMessage(), bad[:2], what)
			if field == "" {
				require.Empty(t, d.GetFields(), what)
			} else {
				require.Equal(t, []string{field}, slices.Collect(maps.Keys(d.GetFields())), what)
			}
			require.Equal(t, before, w.state(t), what)
		}
		for _, y := range ways(m.Input(), nil) {
			switch f := y.last(); {
			case f.IsMap():
				for n, other := range map[protowire.Number]protowire.Number{1: 2, 2: 1} {
					entry := protowire.AppendString(protowire.AppendTag(nil, other, protowire.BytesType), "K")
					entry = protowire.AppendString(protowire.AppendTag(entry, n, protowire.BytesType), bad)
					refuse("not UTF-8 in "+y.String(), encoded(base, y, entry), y.String())
					texts++
				}
			case f.Kind() == protoreflect.StringKind:
				refuse("not UTF-8 in "+y.String(), encoded(base, y, []byte(bad)), y.String())
				texts++
			}
		}
		refuse("cut in a field", append(slices.Clone(base), 0x0a, 0x7f, 'x'), "")
		refuse("a tag and nothing else", append(slices.Clone(base), 0x0a), "")
		refuse("field number 0", append(slices.Clone(base), 0x02, 0x00), "")
		refuse("an open group", append(slices.Clone(base), 0x0b), "")
		refuse("an endless number", append(slices.Clone(base), bytes.Repeat([]byte{0xff}, 20)...), "")
	}
	require.Greater(t, texts, 40)
}

// What a client's random bytes lead to is a refusal with its details, or the answer to a request that is fine; never our fault.
func TestRandomBytesAreNeverOurFault(t *testing.T) {
	w := newTable(t)
	random := rand.New(rand.NewPCG(1, 2))
	for _, m := range methods() {
		base, err := proto.Marshal(w.valid(t, m, w.theirBox, w.theirExec))
		require.NoError(t, err)
		for range 100 {
			req := slices.Clone(base)
			for range 1 + random.IntN(4) {
				if len(req) > 0 && random.IntN(3) > 0 {
					req[random.IntN(len(req))] = byte(random.Uint32())
				} else {
					req = slices.Insert(req, random.IntN(len(req)+1), byte(random.Uint32()))
				}
			}
			ctx, cancel := context.WithTimeout(w.as("alice"), patience)
			if err := callRaw(ctx, w.conn, m, req); err != nil && status.Code(err) != codes.DeadlineExceeded { // following is no refusal
				require.Contains(t, []string{"validation", "sandbox_not_found", "exec_not_found", "tenant_mismatch"}, detail(t, err).GetReason(), "%s %x", m.Name(), req)
			}
			cancel()
		}
	}
}

// A request over the size is refused with all details up to twice that size, and by gRPC itself over it.
func TestEveryCallRefusesWhatIsTooLarge(t *testing.T) {
	w := newTable(t)
	for _, m := range methods() {
		before := w.state(t)
		// A field that nobody knows, so that nothing but the size is wrong.
		large := func(n int) []byte {
			return protowire.AppendBytes(protowire.AppendTag(nil, 50_000, protowire.BytesType), make([]byte, n))
		}
		err := callRaw(w.as("alice"), w.conn, m, large(17<<20))
		require.Equal(t, codes.ResourceExhausted, status.Code(err), "%s: %v", m.Name(), err)
		require.Equal(t, "too_large", detail(t, err).GetReason(), m.Name())
		require.Equal(t, codes.Unauthenticated, status.Code(callRaw(t.Context(), w.conn, m, large(17<<20))), "%s: nobody learns of sizes without a key", m.Name())
		require.Equal(t, before, w.state(t), m.Name())
	}
	err := callRaw(w.as("alice"), w.conn, methods()[0], make([]byte, 33<<20))
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
}

// A caller who sends the server's own mark of an unreadable request has sent an unreadable request.
func TestMarksOfTheServerAreNoWayIn(t *testing.T) {
	w := newTable(t)
	for _, m := range methods() {
		base, err := proto.Marshal(w.valid(t, m, w.liveBox, w.liveExec))
		require.NoError(t, err)
		for _, mark := range [][]byte{
			protowire.AppendBytes(protowire.AppendTag(nil, protowire.MaxValidNumber, protowire.BytesType), nil),
			protowire.AppendVarint(protowire.AppendTag(nil, protowire.MaxValidNumber-1, protowire.VarintType), 1),
		} {
			err := callRaw(w.as("alice"), w.conn, m, append(mark, base...))
			require.Contains(t, []string{"validation", "too_large"}, detail(t, err).GetReason(), m.Name())
		}
	}
}
