package outputcodec_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/outputcodec"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// FuzzUnmarshal: bytes are to this codec what they are to gRPC's own, in pieces of any size.
func FuzzUnmarshal(f *testing.F) {
	ours, theirs := outputcodec.New(), encoding.GetCodecV2(grpcproto.Name)
	for _, e := range []*computev1.ExecEvent{
		{Chunk: 7, Offset: 9, Event: &computev1.ExecEvent_Stdout{Stdout: &computev1.StdoutLine{Data: bytes.Repeat([]byte("x"), 5000)}}},
		{Event: &computev1.ExecEvent_Stderr{Stderr: &computev1.StderrLine{Data: bytes.Repeat([]byte{0}, 9000)}}},
		{Event: &computev1.ExecEvent_Completed{Completed: &computev1.ExecCompleted{ExitCode: 3, Message: "m"}}},
	} {
		b, err := ours.Marshal(e)
		require.NoError(f, err)
		whole := b.Materialize()
		head := whole[:min(len(whole), 64)]
		f.Add(head, uint16(len(whole)-len(head)), whole[len(whole)-1], uint16(100))
	}
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f}, uint16(5000), byte(1), uint16(1))
	// The head decides; what is behind it is one byte over and over, so that inputs stay small.
	f.Fuzz(func(t *testing.T, head []byte, more uint16, fill byte, piece uint16) {
		data := append(bytes.Clone(head), bytes.Repeat([]byte{fill}, int(more))...)
		var a, b computev1.ExecEvent
		size := max(1, int(piece))
		err, want := ours.Unmarshal(cut(data, size), &a), theirs.Unmarshal(cut(data, size), &b)
		require.Equal(t, want == nil, err == nil, "%v %v", want, err)
		if err == nil {
			require.True(t, proto.Equal(&a, &b))
		}
	})
}
