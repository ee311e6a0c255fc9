package tunnel

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
)

type world struct {
	t   *testing.T
	nc  *nats.Conn
	set *Set
}

func newWorld(t *testing.T) world {
	t.Helper()
	f := natstest.Start(t)
	w := world{t: t, nc: f.NC, set: &Set{NC: f.NC, Worker: "w1", Log: slog.New(slog.DiscardHandler)}}
	t.Cleanup(w.set.Close)
	return w
}

// tunnel opens one and gives the program's end of its connection.
func (w world) tunnel(id string) net.Conn {
	w.t.Helper()
	ours, theirs := net.Pipe()
	w.t.Cleanup(func() { ours.Close() })
	require.NoError(w.t, w.set.Open(w.t.Context(), "acme", "s", id, func(context.Context) (net.Conn, error) { return theirs, nil }))
	return ours
}

func (w world) ask(id string, c *commandsv1.TunnelCall) (*commandsv1.FileReply, error) {
	w.t.Helper()
	data, err := proto.Marshal(c)
	require.NoError(w.t, err)
	m, err := w.nc.Request(subject.Tunnel("w1", "acme", "s", id), data, 5*time.Second)
	if err != nil {
		return nil, err
	}
	r := &commandsv1.FileReply{}
	require.NoError(w.t, proto.Unmarshal(m.Data, r))
	if r.GetError() != nil {
		return nil, fault.FromDetail(r.GetError())
	}
	return r, nil
}

func write(data []byte) *commandsv1.TunnelCall {
	return &commandsv1.TunnelCall{Call: &commandsv1.TunnelCall_Write{Write: data}}
}

var (
	read  = &commandsv1.TunnelCall{Call: &commandsv1.TunnelCall_Read{Read: &commandsv1.TunnelRead{}}}
	shut  = &commandsv1.TunnelCall{Call: &commandsv1.TunnelCall_Close{Close: &commandsv1.TunnelClose{}}}
	blank = &commandsv1.TunnelCall{}
)

func TestBytesBothWaysAndTheEnd(t *testing.T) {
	w := newWorld(t)
	program := w.tunnel("t1")
	sent := make([]byte, piece)
	rand.Read(sent)
	got := make(chan []byte, 1)
	go func() {
		all := make([]byte, len(sent))
		_, _ = io.ReadFull(program, all)
		got <- all
		_, _ = program.Write([]byte("answer"))
		program.Close()
	}()
	_, err := w.ask("t1", write(sent))
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, <-got))
	r, err := w.ask("t1", read)
	require.NoError(t, err)
	require.Equal(t, "answer", string(r.GetData()))
	r, err = w.ask("t1", read)
	require.NoError(t, err)
	require.True(t, r.GetEof())
	_, err = w.ask("t1", write([]byte("late")))
	require.True(t, fault.Is(err, fault.ReasonPortUnavailable), "%v", err)
}

func TestWhatIsOutOfBoundsIsRefused(t *testing.T) {
	w := newWorld(t)
	w.tunnel("t1")
	_, err := w.ask("t1", write(make([]byte, piece+1)))
	require.True(t, fault.Is(err, fault.ReasonTooLarge), "%v", err)
	_, err = w.ask("t1", blank)
	require.Equal(t, fault.InvalidArgument, fault.CodeOf(err))
	_, err = w.ask("t2", read)
	require.ErrorIs(t, err, nats.ErrNoResponders)
}

func TestAClosedTunnelAnswersNobody(t *testing.T) {
	w := newWorld(t)
	program := w.tunnel("t1")
	data, err := proto.Marshal(shut)
	require.NoError(t, err)
	require.NoError(t, w.nc.Publish(subject.Tunnel("w1", "acme", "s", "t1"), data))
	_, err = program.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.Eventually(t, func() bool {
		_, err := w.ask("t1", read)
		return err != nil
	}, 5*time.Second, time.Millisecond)
}

func TestPlaces(t *testing.T) {
	w := newWorld(t)
	w.set.places = most - 1
	program := w.tunnel("t1")
	err := w.set.Open(t.Context(), "acme", "s", "t2", nil)
	require.True(t, fault.Is(err, fault.ReasonTooManyCalls), "%v", err)
	w.set.Close()
	_, err = program.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, most-1, w.set.places)
	err = w.set.Open(t.Context(), "acme", "s", "t2", nil)
	require.True(t, fault.Is(err, fault.ReasonWorkerUnavailable), "%v", err)
	require.Equal(t, most-1, w.set.places)
}

func TestAPortThatIsClosedTakesNoPlace(t *testing.T) {
	w := newWorld(t)
	closed := fault.New(fault.Unavailable, fault.ReasonPortUnavailable, "nothing listens")
	err := w.set.Open(t.Context(), "acme", "s", "t1", func(context.Context) (net.Conn, error) { return nil, closed })
	require.ErrorIs(t, err, closed)
	require.Zero(t, w.set.places)
}
