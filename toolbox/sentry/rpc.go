// Package sentry speaks to a gVisor sentry's control socket: JSON messages over a UNIX stream socket, descriptors beside
// them. The protocol is internal to gVisor, so the version of runsc is pinned and the tests run the real one.
package sentry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// ErrGone: the control socket is closed, so the sentry has ended or is about to.
var ErrGone = errors.New("the sentry is gone")

// Error is what the sentry itself answered. Its text may hold paths of the guest.
type Error struct{ Text string }

func (e *Error) Error() string { return e.Text }

// maxIdle connections are kept for the next calls; each costs the sentry a goroutine.
const maxIdle = 4

// maxAnswer bounds one answer. The longest is a list of processes.
const maxAnswer = 4 << 20

// Client calls one sentry. Calls may run concurrently; each has a connection of its own, since the sentry serves one call
// at a time on each.
type Client struct {
	dial      func(context.Context) (*net.UnixConn, error)
	container string
	pausing   pausing
	written   atomic.Uint64

	mu   sync.Mutex
	idle []*conn
}

type conn struct {
	c *net.UnixConn
	d *json.Decoder
	r *io.LimitedReader
}

// New makes a client for a container; dial opens a connection to its control socket.
func New(container string, dial func(context.Context) (*net.UnixConn, error)) *Client {
	return &Client{dial: dial, container: container}
}

// Dialer dials the control socket of a container below runsc's root directory, reached through a descriptor because the
// path of a socket may have at most 107 bytes. The caller keeps root open while the client is used.
func Dialer(root *os.File, container string) func(context.Context) (*net.UnixConn, error) {
	path := fmt.Sprintf("/proc/self/fd/%d/runsc-%s.sock", root.Fd(), container)
	return func(ctx context.Context) (*net.UnixConn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", path)
		if err != nil {
			return nil, err
		}
		return c.(*net.UnixConn), nil
	}
}

func (c *Client) take(ctx context.Context) (*conn, error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		k := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		return k, nil
	}
	c.mu.Unlock()
	u, err := c.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: dial: %w", ErrGone, err)
	}
	r := &io.LimitedReader{R: u}
	return &conn{c: u, r: r, d: json.NewDecoder(r)}, nil
}

func (c *Client) give(k *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.idle) >= maxIdle {
		k.c.Close()
		return
	}
	c.idle = append(c.idle, k)
}

// Close drops the idle connections.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.idle {
		k.c.Close()
	}
	c.idle = nil
}

// call sends one request and waits for its answer. A call that was sent is not taken back by ctx: the connection is closed,
// what it started goes on.
func (c *Client) call(ctx context.Context, method string, arg, result any, files ...*os.File) error {
	k, err := c.take(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { k.c.Close() })
	err = k.exchange(method, arg, result, files)
	if !stop() {
		return fmt.Errorf("%s: %w", method, ctx.Err())
	}
	var answered *Error
	if err == nil || errors.As(err, &answered) {
		c.give(k)
	} else {
		k.c.Close()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	return nil
}

func (k *conn) exchange(method string, arg, result any, files []*os.File) error {
	b, err := json.Marshal(map[string]any{"method": method, "arg": arg})
	if err != nil {
		return err
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			raw, err := f.SyscallConn()
			if err != nil {
				return err
			}
			// Fd() would put the descriptor, which is shared with the sentry, into blocking mode.
			if err := raw.Control(func(fd uintptr) { fds[i] = int(fd) }); err != nil {
				return err
			}
		}
		rights = syscall.UnixRights(fds...)
	}
	n, _, err := k.c.WriteMsgUnix(b, rights, nil)
	if err == nil && n < len(b) {
		_, err = k.c.Write(b[n:])
	}
	if err != nil {
		return fmt.Errorf("%w: send: %w", ErrGone, err)
	}
	var out struct {
		Success bool            `json:"success"`
		Err     string          `json:"err"`
		Result  json.RawMessage `json:"result"`
	}
	k.r.N = maxAnswer
	if err := k.d.Decode(&out); err != nil {
		return fmt.Errorf("%w: receive: %w", ErrGone, err)
	}
	if !out.Success {
		return &Error{Text: out.Err}
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(out.Result, result)
}
