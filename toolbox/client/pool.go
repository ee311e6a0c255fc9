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
	dial func(sandbox string) func(context.Context) (net.Conn, error)

	mu     sync.Mutex
	closed bool
	// idle has no empty entries.
	idle map[string][]*keptConn
}

type keptConn struct {
	conn  net.Conn
	timer *time.Timer
}

// NewPool returns a pool of clients that connect through the function that dial returns for a sandbox. Close it.
func NewPool(dial func(sandbox string) func(context.Context) (net.Conn, error)) *Pool {
	return &Pool{dial: dial, idle: map[string][]*keptConn{}}
}

// Client returns a client of a sandbox's toolbox without a token.
func (p *Pool) Client(sandbox string) *Client {
	return &Client{dial: p.dial(sandbox), kept: shelf{p, sandbox}}
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

// take returns a connection, nil where none is kept.
func (s shelf) take() net.Conn {
	if s.pool == nil {
		return nil
	}
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	kept := s.pool.idle[s.sandbox]
	if len(kept) == 0 {
		return nil
	}
	k := kept[len(kept)-1]
	s.remove(k)
	k.timer.Stop()
	return k.conn
}

// give keeps a connection. False: it is the caller's to close.
func (s shelf) give(conn net.Conn) bool {
	if s.pool == nil {
		return false
	}
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if s.pool.closed || len(s.pool.idle[s.sandbox]) >= idleMost {
		return false
	}
	k := &keptConn{conn: conn}
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
