package rig

import (
	"io"
	"net"
	"sync"
)

// front passes connections on to an address, until it is closed.
type front struct {
	listener net.Listener
	to       string
	running  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	open   map[net.Conn]struct{}
}

func listen(addr, to string) (*front, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	f := &front{listener: l, to: to, open: map[net.Conn]struct{}{}}
	f.running.Go(f.accept)
	return f, nil
}

func (f *front) accept() {
	for {
		in, err := f.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", f.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		if !f.keep(in, out) {
			return
		}
		f.running.Go(func() { f.pass(in, out) })
		f.running.Go(func() { f.pass(out, in) })
	}
}

// keep notes connections, which a front that is closed closes.
func (f *front) keep(conns ...net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range conns {
		if f.closed {
			_ = c.Close()
			continue
		}
		f.open[c] = struct{}{}
	}
	return !f.closed
}

// pass copies one direction. A failure or an end of one is the end of both: what speaks over these links never closes one direction alone.
func (f *front) pass(from, to net.Conn) {
	_, _ = io.Copy(to, from)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range []net.Conn{from, to} {
		_ = c.Close()
		delete(f.open, c)
	}
}

// close ends all connections and returns when none is left.
func (f *front) close() {
	_ = f.listener.Close()
	f.mu.Lock()
	f.closed = true
	for c := range f.open {
		_ = c.Close()
	}
	f.mu.Unlock()
	f.running.Wait()
}
