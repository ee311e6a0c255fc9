package connect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/sandtrail/sandtrail/toolbox/wire"
)

// Way is where the programs of a sandbox find their way out: a port of its loopback address. It lies below those that a kernel gives by itself.
const Way = 3128

// doorIdle is how long a door stays open at which nobody waits: between two waits of who carries connections out there is a moment.
const doorIdle = 20 * time.Second

// Door takes the connections that programs make to their way out. It listens while somebody waits at it; the zero Door is ready.
type Door struct {
	// Port is another one than Way in tests.
	Port uint16

	mu      sync.Mutex
	open    *opening
	waiting int
	idle    *time.Timer
}

// opening is a door that listens.
type opening struct {
	listener net.Listener
	came     chan net.Conn
	// stop ends it, once; over closes when it listens no more.
	stop, over chan struct{}
	stopping   sync.Once
}

// Taken is the answer where a program of the sandbox listens at its way out itself.
func Taken() error {
	return wire.NewError("unavailable", "port_unavailable", fmt.Sprintf("port %d of the sandbox is taken, where its way out begins", Way))
}

// Accept waits for the next connection. Errors are Taken, or the context's.
func (d *Door) Accept(ctx context.Context) (net.Conn, error) {
	for {
		o, err := d.enter()
		if err != nil {
			return nil, err
		}
		select {
		case conn := <-o.came:
			d.leave()
			return conn, nil
		case <-ctx.Done():
			d.leave()
			return nil, ctx.Err()
		case <-o.over:
			d.leave()
		}
	}
}

func (d *Door) enter() (*opening, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open == nil {
		port := d.Port
		if port == 0 {
			port = Way
		}
		l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.FormatUint(uint64(port), 10)))
		if err != nil {
			return nil, Taken()
		}
		d.open = &opening{listener: l, came: make(chan net.Conn), stop: make(chan struct{}), over: make(chan struct{})}
		go d.listen(d.open)
	}
	if d.idle != nil {
		d.idle.Stop()
	}
	d.waiting++
	return d.open, nil
}

func (d *Door) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting--; d.waiting == 0 {
		o := d.open
		d.idle = time.AfterFunc(doorIdle, func() { d.shut(o) })
	}
}

// shut ends a door at which nobody waits.
func (d *Door) shut(o *opening) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting == 0 && o != nil && d.open == o {
		o.stopping.Do(func() {
			close(o.stop)
			o.listener.Close()
		})
	}
}

// listen hands connections to those who wait, one after the other: the kernel of the sandbox holds the others, and bounds them.
func (d *Door) listen(o *opening) {
	defer func() {
		d.mu.Lock()
		d.open = nil
		d.mu.Unlock()
		close(o.over)
	}()
	for {
		conn, err := o.listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			select { // out of descriptors or memory, which passes
			case <-time.After(50 * time.Millisecond):
				continue
			case <-o.stop:
				return
			}
		}
		select {
		case o.came <- conn:
		case <-o.stop:
			conn.Close()
			return
		}
	}
}
