package server

import (
	"bufio"
	"context"
	"io"
	"net"
	"sync"
	"time"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

const (
	// relayed is the most bytes of a connection to a port that are held at once in each direction.
	relayed = 64 << 10
	// takeTime is how long a program may take to take them.
	takeTime = 70 * time.Second
)

// connect opens a connection to a port and carries its bytes from then on. from is what was read of conn already, and the rest.
func (s *server) connect(ctx context.Context, conn net.Conn, from *bufio.Reader, r *toolboxv1.Connect) {
	// A connection out may be waited for as long as the caller likes: that it has gone must not cost the one that comes then.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	said := make(chan struct{})
	go func() {
		defer close(said)
		if _, err := from.Peek(1); err != nil {
			cancel()
		}
	}()
	var far io.ReadWriteCloser
	err := s.guard(func() (err error) {
		far, err = s.handler.Connect(ctx, r)
		return err
	})
	if err != nil {
		s.reply(conn, &toolboxv1.Response{Error: s.failure("Connect", err)})
		return
	}
	s.reply(conn, &toolboxv1.Response{Answer: &toolboxv1.Response_Connect{Connect: &toolboxv1.ConnectReply{}}})
	conn.SetWriteDeadline(time.Time{})
	var both sync.WaitGroup
	both.Go(func() {
		<-said
		send(far, from)
	})
	_, _ = io.CopyBuffer(onlyWriter{conn}, onlyReader{far}, make([]byte, relayed)) // the end of either is how the other learns of it
	conn.Close()
	far.Close() // a program that reads nothing would hold the other direction, and its place, for ever
	both.Wait()
}

// send writes to a port what the caller sends, and closes it at the caller's end. What the program does not take may still leave an answer, so
// that alone ends nothing.
func send(far io.WriteCloser, from io.Reader) {
	buf := make([]byte, relayed)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			// While a program takes nothing nobody hears whether the caller is there still.
			late := time.AfterFunc(takeTime, func() { far.Close() })
			_, failed := far.Write(buf[:n])
			if late.Stop(); failed != nil {
				return
			}
		}
		if err != nil {
			far.Close()
			return
		}
	}
}

// onlyWriter and onlyReader hide what would have io.CopyBuffer leave the buffer aside.
type (
	onlyWriter struct{ io.Writer }
	onlyReader struct{ io.Reader }
)
