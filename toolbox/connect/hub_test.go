package connect

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/toolbox/wire"
)

// joined is a hub with a helper in this process; free counts how often it had no connection left.
func joined(t *testing.T) (h *Hub, free chan struct{}) {
	t.Helper()
	return joinedAt(t, &Door{})
}

func joinedAt(t *testing.T, door *Door) (h *Hub, free chan struct{}) {
	t.Helper()
	in, to, err := os.Pipe()
	require.NoError(t, err)
	from, out, err := os.Pipe()
	require.NoError(t, err)
	free = make(chan struct{}, 100)
	h = NewHub(to, from, func() { free <- struct{}{} })
	done := make(chan struct{})
	go func() {
		defer close(done)
		serve(in, out, door)
		out.Close()
		in.Close()
	}()
	t.Cleanup(func() { h.Close(); <-done })
	return h, free
}

// listener answers each connection with handle, and gives its port.
func listener(t *testing.T, network, address string, handle func(net.Conn)) uint32 {
	t.Helper()
	l, err := net.Listen(network, address)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); handle(conn) }()
		}
	}()
	return uint32(l.Addr().(*net.TCPAddr).Port)
}

func echo(conn net.Conn) { _, _ = io.Copy(conn, conn) }

func TestBytesOfManyConnections(t *testing.T) {
	h, free := joined(t)
	port := listener(t, "tcp4", "127.0.0.1:0", echo)
	stuck, err := h.Open(t.Context(), port)
	require.NoError(t, err)
	var all sync.WaitGroup
	all.Go(func() { // nobody reads what comes back: it stops some time, and nothing else does
		for {
			if _, err := stuck.Write(make([]byte, chunk)); err != nil {
				return
			}
		}
	})
	var busy sync.WaitGroup
	release := make(chan struct{})
	for range Most - 1 {
		conn, err := h.Open(t.Context(), port)
		require.NoError(t, err)
		busy.Go(func() {
			defer conn.Close()
			defer func() { <-release }()
			sent := make([]byte, 3*chunk+1)
			rand.Read(sent)
			var writing sync.WaitGroup
			writing.Go(func() { _, _ = conn.Write(sent) })
			defer writing.Wait()
			got := make([]byte, len(sent))
			if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("other bytes came back (%v)", err)
			}
		})
	}
	_, err = h.Open(t.Context(), port)
	close(release)
	require.ErrorIs(t, err, &wire.Error{Code: "resource_exhausted", Reason: "too_many_calls"})
	busy.Wait()
	require.NoError(t, stuck.Close())
	all.Wait()
	<-free
	require.True(t, h.Idle())
}

func TestEndComesBehindEverything(t *testing.T) {
	h, _ := joined(t)
	sent := bytes.Repeat([]byte("0123456789"), 30_000)
	port := listener(t, "tcp4", "127.0.0.1:0", func(conn net.Conn) { _, _ = conn.Write(sent) })
	conn, err := h.Open(t.Context(), port)
	require.NoError(t, err)
	defer conn.Close()
	got, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Equal(t, sent, got)
}

func TestBothFamilies(t *testing.T) {
	h, _ := joined(t)
	port := listener(t, "tcp6", "[::1]:0", echo)
	conn, err := h.Open(t.Context(), port)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrClosed)
}

func TestWhereNothingListens(t *testing.T) {
	h, _ := joined(t)
	_, err := h.Open(t.Context(), 1)
	require.ErrorIs(t, err, &wire.Error{Code: "unavailable", Reason: "port_unavailable"})
	_, err = h.Open(t.Context(), 0)
	require.ErrorIs(t, err, &wire.Error{Code: "invalid_argument", Reason: "validation"})
	require.True(t, h.Idle())
}

// A program of the sandbox may take the helper's place and say anything. It ends itself by that, and nothing else.
func TestHelperThatBreaksTheProtocol(t *testing.T) {
	for name, said := range map[string][]frame{
		"an unknown answer":         {{1, opened, nil}, {1, 0, nil}},
		"an answer too many":        {{1, opened, nil}, {1, taken, nil}, {1, taken, nil}, {1, taken, nil}},
		"more than was asked for":   {{1, opened, nil}, {1, bytesRead, []byte("a")}, {1, bytesRead, []byte("b")}},
		"a chunk over its size":     {{1, opened, nil}, {1, bytesRead, make([]byte, chunk+1)}},
		"what is nobody's, and end": {{7, bytesRead, []byte("a")}, {8, 0, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			in, to, err := os.Pipe()
			require.NoError(t, err)
			from, out, err := os.Pipe()
			require.NoError(t, err)
			defer in.Close()
			h := NewHub(to, from, func() {})
			defer h.Close()
			go func() {
				defer out.Close()
				_, _ = read(in) // the first thing said is what it answers
				for _, f := range said {
					_ = write(out, f)
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if conn, err := h.Open(ctx, 80); err == nil {
				<-h.Gone()
				_, err = conn.Write([]byte("x"))
				require.Error(t, err)
			}
			select {
			case <-h.Gone():
			case <-ctx.Done():
				t.Fatal("the hub goes on")
			}
		})
	}
}

// FuzzFrames: whatever is read was written so, and nothing is read behind the first that is none.
func FuzzFrames(f *testing.F) {
	var whole bytes.Buffer
	_ = write(&whole, frame{3, give, []byte("bytes")})
	f.Add(whole.Bytes())
	f.Add([]byte{0, 0, 0, 1, 2, 255, 255, 255})
	f.Fuzz(func(t *testing.T, data []byte) {
		in := bytes.NewReader(data)
		var again bytes.Buffer
		for {
			one, err := read(in)
			if err != nil {
				break
			}
			require.LessOrEqual(t, len(one.data), chunk)
			require.NoError(t, write(&again, one))
		}
		require.True(t, bytes.HasPrefix(data, again.Bytes()))
	})
}
