package app_test

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// line stands between clients and a gateway. It cuts each connection behind as many bytes from the gateway as the test says, at once and
// in the middle of whatever is on its way, and can let everything hang as if the other end had vanished.
type line struct {
	net.Listener
	to string
	// length gives how many bytes a new connection lives; below 0 it is not cut.
	length func() int
	cuts   atomic.Int64
	frozen atomic.Bool

	mu    sync.Mutex
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

func newLine(t testing.TB, to string, length func() int) *line {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &line{Listener: l, to: to, length: length, conns: map[net.Conn]bool{}}
	w.wg.Go(w.serve)
	t.Cleanup(func() {
		_ = l.Close()
		w.hangUp()
		w.wg.Wait()
	})
	return w
}

func (w *line) serve() {
	for {
		client, err := w.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", w.to)
		if err != nil {
			_ = client.Close()
			continue
		}
		w.mu.Lock()
		w.conns[client], w.conns[server] = true, true
		w.mu.Unlock()
		left := w.length()
		w.wg.Go(func() { w.carry(server, client, -1) })
		w.wg.Go(func() { w.carry(client, server, left) })
	}
}

// carry copies until a side ends or left bytes are through. A frozen line takes nothing more and answers nothing.
func (w *line) carry(to, from net.Conn, left int) {
	defer w.end(to, from)
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if w.frozen.Load() {
			_, _ = io.Copy(io.Discard, blocked{from})
			return
		}
		if left >= 0 && n >= left {
			w.cuts.Add(1)
			_, _ = to.Write(buf[:left])
			return
		}
		if left >= 0 {
			left -= n
		}
		if _, werr := to.Write(buf[:n]); werr != nil || err != nil {
			return
		}
	}
}

// blocked reads nothing but the end of the connection: what the other side sends stays in the kernel, as on a dead line.
type blocked struct{ net.Conn }

func (b blocked) Read([]byte) (int, error) {
	raw, err := b.Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	// Waits until the connection is closed on our side.
	return 0, raw.Read(func(uintptr) bool { return false })
}

func (w *line) end(conns ...net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range conns {
		delete(w.conns, c)
		_ = c.Close()
	}
}

func (w *line) hangUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		_ = c.Close()
	}
}

// through is a client over the line that connects again at once.
func (w *world) through(l *line) *grpc.ClientConn {
	w.t.Helper()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1, MaxDelay: time.Millisecond}, MinConnectTimeout: 5 * time.Second,
		}))
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, conn.Close()) })
	return conn
}
