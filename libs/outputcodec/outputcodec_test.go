package outputcodec_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/sandtrail/sandtrail/libs/outputcodec"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// event draws any event, with output of any length.
func event(t *rapid.T) *computev1.ExecEvent {
	e := &computev1.ExecEvent{
		Chunk: rapid.Uint64().Draw(t, "chunk"), Offset: rapid.Uint64().Draw(t, "offset"),
	}
	if rapid.Bool().Draw(t, "timed") {
		e.EmittedAt = timestamppb.New(time.Unix(rapid.Int64Range(0, 1<<34).Draw(t, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanoseconds")))
	}
	data := bytes.Repeat([]byte(rapid.StringN(1, 7, -1).Draw(t, "data")), rapid.IntRange(0, 60_000).Draw(t, "times"))
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		e.Event = &computev1.ExecEvent_Stdout{Stdout: &computev1.StdoutLine{Data: data}}
	case 1:
		e.Event = &computev1.ExecEvent_Stderr{Stderr: &computev1.StderrLine{Data: data}}
	case 2:
		e.Event = &computev1.ExecEvent_Gap{Gap: &computev1.OutputGap{Stream: "stdout", From: 1, To: 2}}
	default:
		e.Event = &computev1.ExecEvent_Completed{Completed: &computev1.ExecCompleted{Message: string(bytes.Repeat([]byte("m"), len(data)))}}
	}
	return e
}

// cut is b in pieces of n bytes, as frames bring it.
func cut(b []byte, n int) mem.BufferSlice {
	var all mem.BufferSlice
	for len(b) > 0 {
		k := min(n, len(b))
		all = append(all, mem.SliceBuffer(b[:k]))
		b = b[k:]
	}
	return all
}

// Whatever one of the two codecs writes the other reads, however it is cut.
func TestIsTheProtobufCodecOnTheWire(t *testing.T) {
	ours, theirs := outputcodec.New(), encoding.GetCodecV2(grpcproto.Name)
	require.Equal(t, theirs.Name(), ours.Name())
	rapid.Check(t, func(t *rapid.T) {
		e := event(t)
		size := rapid.IntRange(1, 20_000).Draw(t, "frame")
		for _, way := range [][2]encoding.CodecV2{{ours, theirs}, {theirs, ours}, {ours, ours}} {
			written, err := way[0].Marshal(e)
			require.NoError(t, err)
			// What was in the message before is gone.
			got := &computev1.ExecEvent{Chunk: 7, Event: &computev1.ExecEvent_Heartbeat{}}
			require.NoError(t, way[1].Unmarshal(cut(written.Materialize(), size), got))
			require.True(t, proto.Equal(e, got))
			written.Free()
		}
	})
}

func TestOtherMessagesAndBrokenOnes(t *testing.T) {
	c := outputcodec.New()
	b, err := c.Marshal(&computev1.Heartbeat{})
	require.NoError(t, err)
	require.NoError(t, c.Unmarshal(b, &computev1.Heartbeat{}))
	whole, err := c.Marshal(&computev1.ExecEvent{Chunk: 1, Event: &computev1.ExecEvent_Stdout{Stdout: &computev1.StdoutLine{Data: make([]byte, 20_000)}}})
	require.NoError(t, err)
	sent := whole.Materialize()
	for _, n := range []int{1, 5, len(sent) / 2, len(sent) - 1} {
		require.Error(t, c.Unmarshal(cut(sent[:n], 8192), &computev1.ExecEvent{}), "cut after %d bytes", n)
	}
	require.Error(t, c.Unmarshal(cut(append(sent, 0xff), 8192), &computev1.ExecEvent{}))
}

// Output is sent from where it lies.
func TestOutputIsNotCopied(t *testing.T) {
	data := bytes.Repeat([]byte("x"), 100_000)
	b, err := outputcodec.New().Marshal(&computev1.ExecEvent{Event: &computev1.ExecEvent_Stdout{Stdout: &computev1.StdoutLine{Data: data}}})
	require.NoError(t, err)
	last := b[len(b)-1].ReadOnlyData()
	require.Len(t, last, len(data))
	require.Same(t, &data[0], &last[0])
}

// A reader that keeps one message for all events makes no garbage.
func TestReceivedOutputTakesThePlaceOfTheLast(t *testing.T) {
	c := outputcodec.New()
	e := &computev1.ExecEvent{}
	var first *byte
	for i, n := range []int{50_000, 40_000, 50_000, 60_000} {
		want := &computev1.ExecEvent{Chunk: uint64(i), Event: &computev1.ExecEvent_Stdout{Stdout: &computev1.StdoutLine{Data: bytes.Repeat([]byte{byte(i)}, n)}}}
		b, err := c.Marshal(want)
		require.NoError(t, err)
		require.NoError(t, c.Unmarshal(cut(b.Materialize(), 16<<10), e))
		require.True(t, proto.Equal(want, e))
		at := &e.GetStdout().GetData()[0]
		if i > 0 && n <= 50_000 {
			require.Same(t, first, at)
		}
		first = at
	}
}
