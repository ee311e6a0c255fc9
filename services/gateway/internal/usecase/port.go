package usecase

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

const (
	// tunnelPiece is the most bytes of one message of a tunnel.
	tunnelPiece = 64 << 10
	// tunnelRead and tunnelWrite are a little longer than the worker takes for each at most.
	tunnelRead, tunnelWrite = 30 * time.Second, 70 * time.Second
	// tunnelIdle is how long nothing may pass through one, either way.
	tunnelIdle = 10 * time.Minute
	// tunnelsMost are open at once of one tenant at this gateway.
	tunnelsMost = 256
	// tunnelKnown is how long the log's servers may take to know of a new one.
	tunnelKnown = 2 * time.Second
)

// tunnels counts those of each tenant.
type tunnels struct {
	mu   sync.Mutex
	open map[string]int
}

func (t *tunnels) enter(tenant string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		t.open = map[string]int{}
	}
	if t.open[tenant] >= tunnelsMost {
		return false
	}
	t.open[tenant]++
	return true
}

func (t *tunnels) leave(tenant string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open[tenant]--; t.open[tenant] == 0 {
		delete(t.open, tenant)
	}
}

// Reachable is a sandbox whose ports can be reached, at some time: one that has ended or failed never will be.
func (u *UseCases) Reachable(ctx context.Context, p principal.Principal, id string) (sandbox.Sandbox, error) {
	if err := p.Need(scopes.Execute); err != nil {
		return sandbox.Sandbox{}, err
	}
	s, err := u.locate(ctx, p, id)
	if err != nil {
		return s, err
	}
	return s, over(s)
}

// Serving is a ready sandbox for who uses a port of it, until done is called.
func (u *UseCases) Serving(ctx context.Context, p principal.Principal, id string) (s sandbox.Sandbox, done func(), err error) {
	if err := p.Need(scopes.Execute); err != nil {
		return s, nil, err
	}
	if s, err = u.locateForExec(ctx, p, id); err != nil {
		return s, nil, err
	}
	if s, err = u.running(ctx, s); err != nil {
		return s, nil, err
	}
	done, err = u.using(ctx, s)
	return s, done, err
}

// Dial opens a connection to a port of a sandbox, at its loopback address. ctx bounds the opening. Errors are faults: ReasonPortUnavailable
// where nothing listens.
func (u *UseCases) Dial(ctx context.Context, s sandbox.Sandbox, port uint16) (net.Conn, error) {
	if !u.tunnels.enter(s.Tenant) {
		return nil, fault.Newf(fault.ResourceExhausted, fault.ReasonTooManyCalls, "the tenant has %d connections to ports already; try again", tunnelsMost).
			WithRetry(time.Second)
	}
	id := ids.New()
	_, err := u.fileCall(ctx, s, &commandsv1.FileCall{Call: &commandsv1.FileCall_Connect{
		Connect: &commandsv1.ConnectCall{TunnelId: id, Port: uint32(port)},
	}})
	if err != nil {
		u.tunnels.leave(s.Tenant)
		return nil, err
	}
	t := &tunnelConn{u: u, tenant: s.Tenant, subject: subject.Tunnel(s.Worker, s.Tenant, s.ID, id), port: port}
	t.ctx, t.cancel = context.WithCancel(u.base)
	t.passed()
	return t, nil
}

// tunnelConn is a connection to a port. One goroutine may read while another writes.
type tunnelConn struct {
	u       *UseCases
	tenant  string
	subject string
	port    uint16
	ctx     context.Context //nolint:containedctx // it is the connection's life
	cancel  context.CancelFunc
	closing sync.Once
	// answered: the worker has been heard of. last is when something passed, in nanoseconds.
	answered atomic.Bool
	last     atomic.Int64
	// rest is what was read and not taken yet.
	rest []byte
	end  error
}

var _ net.Conn = (*tunnelConn)(nil)

func (t *tunnelConn) passed() { t.last.Store(time.Now().UnixNano()) }

func (t *tunnelConn) Read(p []byte) (int, error) {
	for len(t.rest) == 0 && t.end == nil {
		reply, err := t.ask(&commandsv1.TunnelCall{Call: &commandsv1.TunnelCall_Read{Read: &commandsv1.TunnelRead{}}}, tunnelRead)
		switch {
		case err != nil:
			t.end = err
		case reply.GetEof():
			t.end = io.EOF
		case len(reply.GetData()) == 0 && time.Since(time.Unix(0, t.last.Load())) > tunnelIdle:
			t.end = os.ErrDeadlineExceeded
		}
		if t.rest = reply.GetData(); len(t.rest) > 0 {
			t.passed()
		}
	}
	if len(t.rest) > 0 {
		n := copy(p, t.rest)
		t.rest = t.rest[n:]
		return n, nil
	}
	return 0, t.end
}

func (t *tunnelConn) Write(p []byte) (n int, err error) {
	for n < len(p) {
		part := p[n:min(n+tunnelPiece, len(p))]
		if _, err := t.ask(&commandsv1.TunnelCall{Call: &commandsv1.TunnelCall_Write{Write: part}}, tunnelWrite); err != nil {
			return n, err
		}
		t.passed()
		n += len(part)
	}
	return n, nil
}

// ask sends a request and waits for its answer. What is lost on the way is not asked for again: nobody knows what of it was done.
func (t *tunnelConn) ask(c *commandsv1.TunnelCall, wait time.Duration) (*commandsv1.FileReply, error) {
	data, err := proto.Marshal(c)
	if err != nil {
		return nil, fault.From(err)
	}
	ctx, cancel := context.WithTimeout(t.ctx, wait)
	defer cancel()
	begun := time.Now()
	m, err := t.u.nc.RequestWithContext(ctx, t.subject, data)
	for errors.Is(err, nats.ErrNoResponders) && !t.answered.Load() && time.Since(begun) < tunnelKnown {
		if err := pause.For(ctx, 10*time.Millisecond); err != nil {
			return nil, err
		}
		m, err = t.u.nc.RequestWithContext(ctx, t.subject, data)
	}
	switch {
	case t.ctx.Err() != nil:
		return nil, net.ErrClosed
	case err != nil:
		return nil, fault.New(fault.Unavailable, fault.ReasonWorkerUnavailable, "the connection to the sandbox broke; try again").
			WithRetry(time.Second).Because(err)
	}
	t.answered.Store(true)
	reply := &commandsv1.FileReply{}
	if err := proto.Unmarshal(m.Data, reply); err != nil {
		return nil, fault.From(err)
	}
	if reply.GetError() != nil {
		return nil, fault.FromDetail(reply.GetError())
	}
	return reply, nil
}

func (t *tunnelConn) Close() error {
	t.closing.Do(func() {
		t.cancel()
		t.u.tunnels.leave(t.tenant)
		data, err := proto.Marshal(&commandsv1.TunnelCall{Call: &commandsv1.TunnelCall_Close{Close: &commandsv1.TunnelClose{}}})
		if err == nil {
			_ = t.u.nc.Publish(t.subject, data) // a worker that hears nothing more closes it by itself
		}
	})
	return nil
}

// LocalAddr is nobody's; RemoteAddr is the port in the sandbox.
func (t *tunnelConn) LocalAddr() net.Addr { return &net.TCPAddr{} }

// RemoteAddr implements net.Conn.
func (t *tunnelConn) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(t.port)}
}

// SetDeadline and the others are not offered: requests have times of their own.
func (t *tunnelConn) SetDeadline(time.Time) error { return os.ErrNoDeadline }

// SetReadDeadline implements net.Conn.
func (t *tunnelConn) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

// SetWriteDeadline implements net.Conn.
func (t *tunnelConn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }
