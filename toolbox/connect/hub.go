package connect

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

// sayTime is how long a helper may take to take a frame. It runs with the CPU that the programs of its sandbox leave it.
const sayTime = 20 * time.Second

// ErrGone: the helper has ended, or broke the protocol.
var ErrGone = errors.New("the helper for ports has ended")

// Hub is a keeper's end of a helper. It may be used concurrently.
type Hub struct {
	out     *os.File
	in      *os.File
	closing sync.Once
	gone    chan struct{}

	writing sync.Mutex

	mu    sync.Mutex
	last  uint32
	conns map[uint32]*Conn
	// free is called when the last connection has closed.
	free func()
}

// NewHub talks to a helper whose standard input is the other end of to, and whose output that of from; both are pipes, and the hub's now. free
// is called whenever no connection is open any more.
func NewHub(to, from *os.File, free func()) *Hub {
	h := &Hub{out: to, in: from, gone: make(chan struct{}), conns: map[uint32]*Conn{}, free: free}
	go h.listen()
	return h
}

// Gone closes when the helper has ended.
func (h *Hub) Gone() <-chan struct{} { return h.gone }

// Idle reports whether no connection is open.
func (h *Hub) Idle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.conns) == 0
}

// Close ends the helper and every connection.
func (h *Hub) Close() {
	h.closing.Do(func() {
		close(h.gone)
		h.out.Close()
		h.in.Close()
	})
}

// listen hands answers to those who wait for them. A helper that says what nobody asked for is ended.
func (h *Hub) listen() {
	defer h.Close()
	r := bufio.NewReader(h.in)
	for {
		f, err := read(r)
		if err != nil {
			return
		}
		h.mu.Lock()
		c := h.conns[f.id]
		h.mu.Unlock()
		if c == nil {
			continue // it was shut meanwhile
		}
		to := c.fetched
		switch f.kind {
		case opened, refused, full, taken, broken:
			to = c.put
		case bytesRead, ended, failed:
		default:
			return
		}
		select {
		case to <- f:
		default:
			return
		}
	}
}

func (h *Hub) say(f frame) error {
	h.writing.Lock()
	defer h.writing.Unlock()
	_ = h.out.SetWriteDeadline(time.Now().Add(sayTime))
	if err := write(h.out, f); err != nil {
		h.Close() // a part of the frame may have gone
		return ErrGone
	}
	return nil
}

// Open opens a connection to a port of the sandbox. Errors are those that a toolbox answers, the context's, or ErrGone.
func (h *Hub) Open(ctx context.Context, port uint32) (*Conn, error) {
	if err := Check(port); err != nil {
		return nil, err
	}
	c, err := h.reach(ctx, port)
	if errors.Is(err, errRefused) {
		err = Closed(port)
	}
	return c, err
}

// Accept waits for the next connection that a program of the sandbox makes to its way out. Errors are those of Open.
func (h *Hub) Accept(ctx context.Context) (*Conn, error) {
	c, err := h.reach(ctx, 0)
	if errors.Is(err, errRefused) {
		err = Taken()
	}
	return c, err
}

var errRefused = errors.New("the helper cannot open the connection")

// reach opens a connection to a port, or takes one that is opened where there is none. errRefused where that cannot be done.
func (h *Hub) reach(ctx context.Context, port uint32) (*Conn, error) {
	c := &Conn{hub: h, put: make(chan frame, 1), fetched: make(chan frame, 1), closed: make(chan struct{})}
	h.mu.Lock()
	if len(h.conns) >= Most {
		h.mu.Unlock()
		return nil, Full()
	}
	h.last++
	c.id = h.last
	h.conns[c.id] = c
	h.mu.Unlock()
	if err := h.say(frame{c.id, open, binary.BigEndian.AppendUint16(nil, uint16(port))}); err != nil { //nolint:gosec // see Check
		c.Close()
		return nil, err
	}
	var f frame
	select {
	case f = <-c.put:
	case <-h.gone:
		c.Close()
		return nil, ErrGone
	case <-ctx.Done():
		c.Close()
		return nil, ctx.Err()
	}
	switch f.kind {
	case opened:
		return c, nil
	case full:
		c.Close()
		return nil, Full()
	default:
		c.Close()
		return nil, errRefused
	}
}

// Conn is a connection to a port. One goroutine may read while another writes; Close may come from any.
type Conn struct {
	hub *Hub
	id  uint32
	// put has answers to open and give, fetched those to want.
	put, fetched chan frame
	closing      sync.Once
	closed       chan struct{}
	// rest is what was read and not taken yet; over that nothing more comes.
	rest  []byte
	over  error
	asked bool
}

// Read gives what the program wrote, io.EOF behind it.
func (c *Conn) Read(p []byte) (int, error) {
	if len(c.rest) == 0 && c.over == nil {
		c.over = c.fetch()
	}
	if len(c.rest) > 0 {
		n := copy(p, c.rest)
		c.rest = c.rest[n:]
		return n, nil
	}
	return 0, c.over
}

// fetch takes a chunk, and asks for the next one: it comes while this one is on its way.
func (c *Conn) fetch() error {
	if !c.asked {
		if err := c.hub.say(frame{id: c.id, kind: want}); err != nil {
			return err
		}
		c.asked = true
	}
	f, err := c.answer(c.fetched)
	switch {
	case err != nil:
		return err
	case f.kind == ended:
		return io.EOF
	case f.kind != bytesRead || len(f.data) == 0:
		return io.ErrUnexpectedEOF
	}
	c.rest = f.data
	return c.hub.say(frame{id: c.id, kind: want})
}

// Write returns when the program's kernel has all of it.
func (c *Conn) Write(p []byte) (n int, err error) {
	for n < len(p) {
		part := p[n:min(n+chunk, len(p))]
		if err := c.hub.say(frame{c.id, give, part}); err != nil {
			return n, err
		}
		f, err := c.answer(c.put)
		switch {
		case err != nil:
			return n, err
		case f.kind != taken:
			return n, io.ErrClosedPipe
		}
		n += len(part)
	}
	return n, nil
}

func (c *Conn) answer(from chan frame) (frame, error) {
	select {
	case f := <-from:
		return f, nil
	case <-c.closed:
		return frame{}, os.ErrClosed
	case <-c.hub.gone:
		return frame{}, ErrGone
	}
}

// Close closes both directions.
func (c *Conn) Close() error {
	c.closing.Do(func() {
		close(c.closed)
		_ = c.hub.say(frame{id: c.id, kind: shut}) // a helper that is gone has closed it
		c.hub.mu.Lock()
		delete(c.hub.conns, c.id)
		last := len(c.hub.conns) == 0
		c.hub.mu.Unlock()
		if last {
			c.hub.free()
		}
	})
	return nil
}
