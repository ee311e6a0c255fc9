package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

func data(b []byte) *toolboxv1.Response {
	return &toolboxv1.Response{Answer: &toolboxv1.Response_Attach{Attach: &toolboxv1.AttachEvent{
		Event: &toolboxv1.AttachEvent_Data{Data: &toolboxv1.Data{Stream: 1, Data: b}},
	}}}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream bytes.Buffer
		sizes := rapid.SliceOfN(rapid.IntRange(0, 200_000), 1, 5).Draw(t, "sizes")
		for i, n := range sizes {
			require.NoError(t, Write(&stream, data(bytes.Repeat([]byte{byte(i + 1)}, n))))
		}
		// One byte at a time: a read may end anywhere.
		r := iotest.OneByteReader(&stream)
		if len(sizes) > 2 {
			r = iotest.HalfReader(&stream)
		}
		for i, n := range sizes {
			var m toolboxv1.Response
			require.NoError(t, Read(r, &m))
			require.True(t, proto.Equal(data(bytes.Repeat([]byte{byte(i + 1)}, n)), &m))
		}
		require.Equal(t, io.EOF, Read(r, &toolboxv1.Response{}))
	})
}

func TestCutFramesAreErrors(t *testing.T) {
	var whole bytes.Buffer
	require.NoError(t, Write(&whole, data([]byte("0123456789"))))
	for n := 1; n < whole.Len(); n++ {
		err := Read(bytes.NewReader(whole.Bytes()[:n]), &toolboxv1.Response{})
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "after %d bytes", n)
	}
}

func TestBounds(t *testing.T) {
	require.ErrorIs(t, Write(io.Discard, data(make([]byte, MaxMessage))), ErrTooLarge)
	require.NoError(t, Write(io.Discard, data(make([]byte, MaxMessage-100))))
	for _, size := range []uint32{MaxMessage + 1, 1 << 31, 1<<32 - 1} {
		frame := binary.BigEndian.AppendUint32(nil, size)
		require.ErrorIs(t, Read(io.MultiReader(bytes.NewReader(frame), zeros{}), &toolboxv1.Response{}), ErrTooLarge)
	}
	junk := append(binary.BigEndian.AppendUint32(nil, 3), 0xff, 0xff, 0xff)
	require.ErrorIs(t, Read(bytes.NewReader(junk), &toolboxv1.Response{}), ErrMalformed)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// Whatever a hostile peer sends, Read ends with an error or a message.
func FuzzRead(f *testing.F) {
	var whole bytes.Buffer
	require.NoError(f, Write(&whole, data([]byte("x"))))
	f.Add(whole.Bytes())
	f.Add([]byte{0, 16, 0, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		var m toolboxv1.Response
		if err := Read(bytes.NewReader(b), &m); err == nil {
			require.GreaterOrEqual(t, len(b), header)
		}
	})
}

func TestWritingMakesNoGarbage(t *testing.T) {
	m := data(make([]byte, 32<<10))
	require.NoError(t, Write(io.Discard, m))
	require.Less(t, testing.AllocsPerRun(1000, func() {
		if Write(io.Discard, m) != nil {
			panic("write failed")
		}
	}), 1.0)
}

func TestInternalErrorsKeepTheirText(t *testing.T) {
	e := ToProto(errors.New("/host/path: secret"))
	require.Equal(t, "internal", e.Code)
	require.NotContains(t, e.Message, "host")
	known := NewError("not_found", "exec_not_found", "no such exec")
	require.True(t, proto.Equal(&toolboxv1.Error{Code: "not_found", Reason: "exec_not_found", Message: "no such exec"},
		ToProto(fmt.Errorf("attach: %w", known))))
	require.ErrorIs(t, FromProto(ToProto(known)), known)
	require.NotErrorIs(t, known, NewError("not_found", "path_not_found", ""))
	require.Nil(t, FromProto(nil))
}
