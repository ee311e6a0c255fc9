package wire

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

// events draws what may follow an Attach, output of all lengths above all.
func events(t *rapid.T) []*toolboxv1.AttachEvent {
	one := rapid.Custom(func(t *rapid.T) *toolboxv1.AttachEvent {
		stream, offset := rapid.Uint32Range(0, 3).Draw(t, "stream"), rapid.Uint64().Draw(t, "offset")
		switch rapid.IntRange(0, 5).Draw(t, "kind") {
		case 0:
			return &toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_Skip{Skip: &toolboxv1.Skip{Stream: stream, From: offset, To: 7}}}
		case 1:
			return &toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_End{End: &toolboxv1.End{Reason: "exited", Message: string(make([]byte, offset%20_000))}}}
		}
		n := rapid.OneOf(rapid.IntRange(0, 100), rapid.IntRange(large-100, large+100), rapid.IntRange(0, 300_000)).Draw(t, "bytes")
		return &toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_Data{Data: &toolboxv1.Data{
			Stream: stream, Offset: offset, Data: bytes.Repeat([]byte{byte(n), byte(stream), 3}, n)[:n],
		}}}
	})
	return rapid.SliceOfN(one, 1, 8).Draw(t, "events")
}

// All that is written is read, however it is cut on the way, whichever of the two ways it is written, and however much of the
// output the reader takes.
func TestEventsAreReadAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream bytes.Buffer
		all := events(t)
		for _, e := range all {
			if rapid.Bool().Draw(t, "plain") {
				require.NoError(t, Write(&stream, &toolboxv1.Response{Answer: &toolboxv1.Response_Attach{Attach: e}}))
			} else {
				require.NoError(t, WriteAttach(&stream, e))
			}
		}
		var r io.Reader = &stream
		switch rapid.IntRange(0, 2).Draw(t, "cut") {
		case 0:
			r = iotest.HalfReader(r)
		case 1:
			r = iotest.DataErrReader(r)
		}
		in := NewEvents(r)
		for _, want := range all {
			res, n, err := in.Next()
			require.NoError(t, err)
			require.Len(t, want.GetData().GetData(), n)
			got := proto.Clone(res.GetAttach()).(*toolboxv1.AttachEvent)
			if want.GetData() == nil {
				require.True(t, proto.Equal(want, got))
				continue
			}
			take := rapid.IntRange(0, n).Draw(t, "take")
			if rapid.Bool().Draw(t, "all") {
				take = n
			}
			b := make([]byte, take)
			_, err = io.ReadFull(in, b)
			require.NoError(t, err)
			require.Equal(t, want.GetData().GetData()[:take], b)
			if take == n {
				_, err = in.Read(make([]byte, 1))
				require.Equal(t, io.EOF, err)
			}
			require.Equal(t, want.GetData().GetStream(), got.GetData().GetStream())
			require.Equal(t, want.GetData().GetOffset(), got.GetData().GetOffset())
			require.Empty(t, got.GetData().GetData())
		}
		_, _, err := in.Next()
		require.Equal(t, io.EOF, err)
	})
}

// A frame that is cut anywhere is an error, never an end.
func TestCutEventsAreErrors(t *testing.T) {
	for _, size := range []int{10, 2 * large} {
		var whole bytes.Buffer
		require.NoError(t, WriteAttach(&whole, data(make([]byte, size)).GetAttach()))
		for n := 1; n < whole.Len(); n += 1 + n/70 {
			in := NewEvents(bytes.NewReader(whole.Bytes()[:n]))
			_, _, err := in.Next()
			if err == nil {
				_, err = io.Copy(io.Discard, in)
			}
			require.ErrorIs(t, err, io.ErrUnexpectedEOF, "after %d of %d bytes", n, whole.Len())
		}
	}
}

func TestEventsAreBounded(t *testing.T) {
	require.ErrorIs(t, WriteAttach(io.Discard, data(make([]byte, MaxMessage)).GetAttach()), ErrTooLarge)
	require.NoError(t, WriteAttach(io.Discard, data(make([]byte, MaxMessage-100)).GetAttach()))
	frame := binary.BigEndian.AppendUint32(nil, MaxMessage+1)
	_, _, err := NewEvents(io.MultiReader(bytes.NewReader(frame), zeros{})).Next()
	require.ErrorIs(t, err, ErrTooLarge)
	frame = append(binary.BigEndian.AppendUint32(nil, 3), 0xff, 0xff, 0xff)
	_, _, err = NewEvents(bytes.NewReader(frame)).Next()
	require.ErrorIs(t, err, ErrMalformed)
}

// Output that is read piece by piece into the same place leaves nothing behind to collect.
func TestOutputMakesNoGarbage(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	go func() {
		e := data(make([]byte, 64<<10)).GetAttach()
		for WriteAttach(there, e) == nil {
		}
	}()
	in, buf := NewEvents(here), make([]byte, 64<<10)
	read := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, n, err := in.Next()
			require.NoError(b, err)
			_, err = io.ReadFull(in, buf[:n])
			require.NoError(b, err)
		}
	})
	require.Less(t, read.AllocedBytesPerOp(), int64(2048))
}

func FuzzEvents(f *testing.F) {
	var whole bytes.Buffer
	for _, n := range []int{0, 10, 2 * large} {
		_ = WriteAttach(&whole, data(make([]byte, n)).GetAttach())
	}
	f.Add(whole.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		in := NewEvents(bytes.NewReader(b))
		for {
			_, n, err := in.Next()
			if err != nil {
				return
			}
			if got, err := io.Copy(io.Discard, in); err == nil && got != int64(n) {
				t.Fatalf("%d bytes of %d", got, n)
			}
		}
	})
}
