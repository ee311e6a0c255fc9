package app_test

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// gate is an address in front of a ClickHouse that can be shut, and that cuts connections in the middle of what they say.
type gate struct {
	l  net.Listener
	to string

	mu    sync.Mutex
	shut  bool
	conns map[net.Conn]bool
	// left is how many bytes the server is still to be told before cut is called; below 0: no end.
	left int64
	cut  func()
}

// newGate stands in front of an address and gives the one to use instead.
func newGate(t testing.TB, address string) (g *gate, through string) {
	t.Helper()
	u, err := url.Parse(address)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g = &gate{l: l, to: u.Host, conns: map[net.Conn]bool{}, left: -1}
	t.Cleanup(func() {
		_ = l.Close()
		g.set(true)
	})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go g.pass(c)
		}
	}()
	u.Host = l.Addr().String()
	return g, u.String()
}

// set shuts the gate, which ends every connection, or opens it.
func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
	if shut {
		for c := range g.conns {
			_ = c.Close()
		}
	}
}

// cutAfter calls cut and ends the connection when the server has been told so many more bytes.
func (g *gate) cutAfter(bytes int64, cut func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left, g.cut = bytes, cut
}

func (g *gate) pass(c net.Conn) {
	up, err := net.Dial("tcp", g.to)
	if err != nil {
		_ = c.Close()
		return
	}
	g.mu.Lock()
	if g.shut {
		g.mu.Unlock()
		_, _ = c.Close(), up.Close()
		return
	}
	g.conns[c], g.conns[up] = true, true
	g.mu.Unlock()
	defer func() {
		_, _ = c.Close(), up.Close()
		g.mu.Lock()
		delete(g.conns, c)
		delete(g.conns, up)
		g.mu.Unlock()
	}()
	go func() {
		_, _ = io.Copy(c, up)
		_ = c.Close()
	}()
	b := make([]byte, 4096)
	for {
		n, err := c.Read(b)
		n, cut := g.allowed(n)
		if _, e := up.Write(b[:n]); err != nil || e != nil {
			return
		}
		if cut != nil {
			cut()
			return
		}
	}
}

// allowed is how many of so many bytes may pass, and what to do when they have.
func (g *gate) allowed(n int) (int, func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.left < 0 {
		return n, nil
	}
	if int64(n) < g.left {
		g.left -= int64(n)
		return n, nil
	}
	n, cut := int(g.left), g.cut
	g.left, g.cut = -1, nil
	return n, cut
}
