package client

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// idleMost are the connections kept for one sandbox, idleTime how long: less than the toolbox's own bound, so that mostly
	// this side closes.
	idleMost = 2
	idleTime = 20 * time.Second
)

// Pool makes clients that use connections again: connecting to a toolbox costs more than a call. It keeps two connections at
// most for each sandbox that was called in the last 20 seconds.
type Pool struct {
	route func(ctx context.Context, sandbox string) (Route, error)

	mu     sync.Mutex
	closed bool
	// idle has no empty entries.
	idle map[string][]*keptConn
}

type keptConn struct {
	conn     net.Conn
	identity string
	timer    *time.Timer
}

// NewPool returns a pool of clients that connect through the function that dial returns for a sandbox. Close it.
func NewPool(dial func(sandbox string) func(context.Context) (net.Conn, error)) *Pool {
	return NewRoutedPool(func(_ context.Context, sandbox string) (Route, error) { return Route{Dial: dial(sandbox)}, nil })
}

// NewRoutedPool is NewPool for sandboxes whose toolbox has to be looked up, which route does at each call. Close it.
func NewRoutedPool(route func(ctx context.Context, sandbox string) (Route, error)) *Pool {
	return &Pool{route: route, idle: map[string][]*keptConn{}}
}

// Client returns a client of a sandbox's toolbox without a token.
func (p *Pool) Client(sandbox string) *Client {
	route := func(ctx context.Context) (Route, error) { return p.route(ctx, sandbox) }
	return &Client{route: route, kept: shelf{p, sandbox}}
}

// Alive reports whether a kept connection is open at its other end, which a toolbox closes when its sandbox ends: what Hello would
// say, without asking. False says nothing.
func (p *Pool) Alive(sandbox string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.idle[sandbox] {
		if silent(k.conn) {
			return true
		}
	}
	return false
}

// silent reports whether a connection is open and has nothing to read.
func silent(conn net.Conn) bool {
	if secure, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secure.NetConn()
	}
	c, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	open := false
	err = raw.Control(func(fd uintptr) {
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		open = errors.Is(err, unix.EAGAIN)
	})
	return err == nil && open
}

// Close closes what is kept. Calls under way go on, later ones keep nothing.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, kept := range p.idle {
		for _, k := range kept {
			k.timer.Stop()
			k.conn.Close()
		}
	}
	clear(p.idle)
}

// shelf is what a pool keeps for one sandbox; without a pool it keeps nothing.
type shelf struct {
	pool    *Pool
	sandbox string
}

// take returns a connection, nil where none is kept. Those to a toolbox that had the sandbox before are closed.
func (s shelf) take(identity string) net.Conn {
	if s.pool == nil {
		return nil
	}
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	for kept := s.pool.idle[s.sandbox]; len(kept) > 0; kept = s.pool.idle[s.sandbox] {
		k := kept[len(kept)-1]
		s.remove(k)
		k.timer.Stop()
		if k.identity == identity {
			return k.conn
		}
		k.conn.Close()
	}
	return nil
}

// give keeps a connection. False: it is the caller's to close.
func (s shelf) give(conn net.Conn, identity string) bool {
	if s.pool == nil {
		return false
	}
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if s.pool.closed || len(s.pool.idle[s.sandbox]) >= idleMost {
		return false
	}
	k := &keptConn{conn: conn, identity: identity}
	k.timer = time.AfterFunc(idleTime, func() { s.expire(k) })
	s.pool.idle[s.sandbox] = append(s.pool.idle[s.sandbox], k)
	return true
}

func (s shelf) expire(k *keptConn) {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if s.remove(k) {
		k.conn.Close()
	}
}

// remove takes a connection off the shelf. False: it was taken already.
func (s shelf) remove(k *keptConn) bool {
	kept := s.pool.idle[s.sandbox]
	i := slices.Index(kept, k)
	if i < 0 {
		return false
	}
	if kept = slices.Delete(kept, i, i+1); len(kept) == 0 {
		delete(s.pool.idle, s.sandbox)
	} else {
		s.pool.idle[s.sandbox] = kept
	}
	return true
}
