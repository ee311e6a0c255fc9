// Package tunnel carries bytes between gateways and the ports of this worker's sandboxes. A gateway asks for each piece and says when it has
// another: so neither side holds more than one, and a program that reads or writes slowly holds up nobody else.
package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
)

const (
	// piece is the most bytes of one message.
	piece = 64 << 10
	// readWait is how long a read waits for something, writeWait how long a program may take to take a piece.
	readWait, writeWait = 20 * time.Second, time.Minute
	// silence is how long a gateway may ask for nothing: it always waits for something to read.
	silence = time.Minute
	// flushTime bounds the wait for the log's server to know of a tunnel.
	flushTime = 5 * time.Second
	// most tunnels are open at once on the worker; the toolbox bounds those of a sandbox.
	most = 512
)

// Set are the tunnels of one worker. It may be used concurrently.
type Set struct {
	NC     *nats.Conn
	Worker string
	Log    *slog.Logger

	mu   sync.Mutex
	open map[*tunnel]struct{}
	// places are taken by those that are open or opening.
	places int
	over   bool
}

// tunnel is one connection.
type tunnel struct {
	set           *Set
	conn          net.Conn
	sub           *nats.Subscription
	quiet         *time.Timer
	closing       sync.Once
	done          chan struct{}
	reads, writes chan *nats.Msg
}

// enter takes a place for a tunnel, or says why there is none.
func (s *Set) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return stopping(nil)
	}
	if s.places >= most {
		return fault.New(fault.ResourceExhausted, fault.ReasonTooManyCalls, "the worker has too many connections to ports already; try again").WithRetry(time.Second)
	}
	s.places++
	return nil
}

// leave gives it back.
func (s *Set) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.places--
}

func stopping(err error) error {
	return fault.New(fault.Unavailable, fault.ReasonWorkerUnavailable, "the worker is stopping; try again").WithRetry(time.Second).Because(err)
}

// Open dials and serves the tunnel with the id from then on. Errors are faults, or dial's own.
func (s *Set) Open(ctx context.Context, tenant, box, id string, dial func(context.Context) (net.Conn, error)) error {
	if err := s.enter(); err != nil {
		return err
	}
	conn, err := dial(ctx)
	if err != nil {
		s.leave()
		return err
	}
	t := &tunnel{set: s, conn: conn, done: make(chan struct{}), reads: make(chan *nats.Msg, 1), writes: make(chan *nats.Msg, 1)}
	// Nobody asks for anything before this answer has come.
	t.sub, err = s.NC.Subscribe(subject.Tunnel(s.Worker, tenant, box, id), t.take)
	if err != nil {
		conn.Close()
		s.leave()
		return stopping(err)
	}
	t.quiet = time.AfterFunc(silence, t.close)
	if err = s.NC.FlushTimeout(flushTime); err != nil || !s.add(t) {
		t.close()
		return stopping(err)
	}
	go t.each(t.reads, t.read)
	go t.each(t.writes, t.write)
	return nil
}

// add reports whether tunnels are served still.
func (s *Set) add(t *tunnel) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[*tunnel]struct{}{}
	}
	s.open[t] = struct{}{}
	return !s.over
}

// Close ends every tunnel, and lets no other one begin.
func (s *Set) Close() {
	s.mu.Lock()
	s.over = true
	var all []*tunnel
	for t := range s.open {
		all = append(all, t)
	}
	s.mu.Unlock()
	for _, t := range all {
		t.close()
	}
}

func (t *tunnel) close() {
	t.closing.Do(func() {
		close(t.done)
		t.quiet.Stop()
		t.conn.Close()
		_ = t.sub.Unsubscribe() // the connection is closing if this fails
		t.set.mu.Lock()
		defer t.set.mu.Unlock()
		delete(t.set.open, t)
		t.set.places--
	})
}

// take sorts what a gateway asks for.
func (t *tunnel) take(m *nats.Msg) {
	t.quiet.Reset(silence)
	c := &commandsv1.TunnelCall{}
	if proto.Unmarshal(m.Data, c) != nil {
		t.answer(m, nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request cannot be read"))
		return
	}
	to := t.reads
	switch c.GetCall().(type) {
	case *commandsv1.TunnelCall_Close:
		t.close()
		return
	case *commandsv1.TunnelCall_Write:
		to = t.writes
	case *commandsv1.TunnelCall_Read:
	default:
		t.answer(m, nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request is of no known kind"))
		return
	}
	select {
	case to <- m:
	default:
		t.answer(m, nil, fault.New(fault.FailedPrecondition, fault.ReasonIllegalState, "an earlier request is not answered yet"))
	}
}

// each answers requests of one kind, one after the other.
func (t *tunnel) each(from <-chan *nats.Msg, do func(*nats.Msg) (*commandsv1.FileReply, error)) {
	for {
		select {
		case m := <-from:
			reply, err := do(m)
			t.answer(m, reply, err)
		case <-t.done:
			return
		}
	}
}

func (t *tunnel) read(*nats.Msg) (*commandsv1.FileReply, error) {
	buf := make([]byte, piece)
	_ = t.conn.SetReadDeadline(time.Now().Add(readWait)) // a connection that is gone fails by itself
	n, err := t.conn.Read(buf)
	var slow net.Error
	switch {
	case n > 0:
		return &commandsv1.FileReply{Data: buf[:n]}, nil
	case errors.As(err, &slow) && slow.Timeout():
		return &commandsv1.FileReply{}, nil
	case errors.Is(err, io.EOF):
		return &commandsv1.FileReply{Eof: true}, nil
	}
	return nil, broken(err)
}

func (t *tunnel) write(m *nats.Msg) (*commandsv1.FileReply, error) {
	c := &commandsv1.TunnelCall{}
	if err := proto.Unmarshal(m.Data, c); err != nil || len(c.GetWrite()) > piece {
		return nil, fault.Newf(fault.InvalidArgument, fault.ReasonTooLarge, "one piece has at most %d bytes", piece)
	}
	_ = t.conn.SetWriteDeadline(time.Now().Add(writeWait))
	if _, err := t.conn.Write(c.GetWrite()); err != nil {
		return nil, broken(err)
	}
	return &commandsv1.FileReply{}, nil
}

func broken(err error) error {
	return fault.New(fault.Unavailable, fault.ReasonPortUnavailable, "the connection to the port broke").Because(err)
}

func (t *tunnel) answer(m *nats.Msg, reply *commandsv1.FileReply, err error) {
	if err != nil {
		detail, code := fault.Detail(err)
		reply = &commandsv1.FileReply{Error: detail, GrpcCode: uint32(code)}
	}
	data, err := proto.Marshal(reply)
	if err == nil {
		err = m.Respond(data)
	}
	if err != nil && !errors.Is(err, nats.ErrMsgNoReply) {
		t.set.Log.Debug("tunnel not answered", "error", fmt.Sprintf("%T", err))
	}
}
