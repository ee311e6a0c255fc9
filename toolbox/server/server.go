// Package server answers the calls of toolbox.v1 on a listener: on each connection one call after another.
package server

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

// Defaults of Serve.
const (
	// MaxConns is how many connections are served at once. One more is answered resource_exhausted at once.
	MaxConns = 256
	// RequestTimeout is how long a request may take to arrive.
	RequestTimeout = 5 * time.Second
	// ReplyTimeout is how long a caller may take to read a reply. Events of an Attach have no such bound: there a slow
	// reader holds the program back.
	ReplyTimeout = 30 * time.Second
	// IdleTimeout is how long a connection may stay without a call after its last one.
	IdleTimeout = time.Minute
	// Drain is how long calls may go on once the context of Serve has ended.
	Drain = 2 * time.Second
)

// refusals bounds the goroutines that tell callers over MaxConns why. Past it a connection is closed without a word.
const refusals = 16

// Handler has one method for each call. The context ends when the caller hangs up or the server stops; a call that must
// not stop half-way detaches itself with context.WithoutCancel. Errors are answered through wire.ToProto: a *wire.Error
// as it is, anything else as internal. Methods run concurrently.
type Handler interface {
	Hello(context.Context, *toolboxv1.Hello) (*toolboxv1.HelloReply, error)
	Start(context.Context, *toolboxv1.Start) (*toolboxv1.StartReply, error)
	// Attach sends events until the End, then returns nil. send blocks while the caller does not read and fails when it
	// has hung up; it is done with the event, and with the bytes in it, when it returns.
	Attach(ctx context.Context, r *toolboxv1.Attach, send func(*toolboxv1.AttachEvent) error) error
	Stdin(context.Context, *toolboxv1.Stdin) (*toolboxv1.StdinReply, error)
	Resize(context.Context, *toolboxv1.Resize) (*toolboxv1.ResizeReply, error)
	Signal(context.Context, *toolboxv1.Signal) (*toolboxv1.SignalReply, error)
	List(context.Context, *toolboxv1.List) (*toolboxv1.ListReply, error)
	Usage(context.Context, *toolboxv1.Usage) (*toolboxv1.UsageReply, error)
	ReadFile(context.Context, *toolboxv1.ReadFile) (*toolboxv1.ReadFileReply, error)
	WriteFile(context.Context, *toolboxv1.WriteFile) (*toolboxv1.WriteFileReply, error)
	ListFiles(context.Context, *toolboxv1.ListFiles) (*toolboxv1.ListFilesReply, error)
	StatFile(context.Context, *toolboxv1.StatFile) (*toolboxv1.StatFileReply, error)
	DeleteFile(context.Context, *toolboxv1.DeleteFile) (*toolboxv1.DeleteFileReply, error)
	MakeEntry(context.Context, *toolboxv1.MakeEntry) (*toolboxv1.MakeEntryReply, error)
	Shutdown(context.Context, *toolboxv1.Shutdown) (*toolboxv1.ShutdownReply, error)
	Forget(context.Context, *toolboxv1.Forget) (*toolboxv1.ForgetReply, error)
	Configure(context.Context, *toolboxv1.Configure) (*toolboxv1.ConfigureReply, error)
	// Connect gives a connection to a port. One goroutine reads from it while another writes; closing it ends both.
	Connect(context.Context, *toolboxv1.Connect) (io.ReadWriteCloser, error)
}

// Option changes a default of Serve.
type Option func(*server)

// WithToken refuses requests that do not carry the token. Empty: no token is asked for.
func WithToken(token string) Option { return func(s *server) { s.token = token } }

// WithTarget refuses requests that are not meant for the one with this name and uid.
func WithTarget(name, uid string) Option {
	return func(s *server) { s.target = &toolboxv1.Target{Name: name, Uid: uid} }
}

// WithLog says what went wrong inside; never content of requests. Default: nothing is logged.
func WithLog(log *slog.Logger) Option { return func(s *server) { s.log = log } }

// WithMaxConns sets how many connections are served at once.
func WithMaxConns(n int) Option { return func(s *server) { s.maxConns = n } }

// WithRequestTimeout sets how long a request may take to arrive.
func WithRequestTimeout(d time.Duration) Option { return func(s *server) { s.requestTimeout = d } }

// WithDrain sets how long calls may go on once the context has ended.
func WithDrain(d time.Duration) Option { return func(s *server) { s.drain = d } }

// WithLife ends the connections that have no call when life does: an open one says that the sandbox lives. Later calls are
// answered, each on a connection of its own.
func WithLife(life context.Context) Option { return func(s *server) { s.life = life } }

type server struct {
	handler        Handler
	life           context.Context
	token          string
	target         *toolboxv1.Target
	log            *slog.Logger
	maxConns       int
	requestTimeout time.Duration
	drain          time.Duration

	// serving is the context of Serve; calls that of every call, which ends a drain time later.
	serving, calls context.Context
	wg             sync.WaitGroup
}

// Serve answers calls until ctx ends, gives those under way the drain time, cuts what is left, and returns nil when the
// last handler has returned. It closes the listener. An error is one of Accept that does not pass.
func Serve(ctx context.Context, l net.Listener, h Handler, opts ...Option) error {
	s := &server{
		handler: h, maxConns: MaxConns, requestTimeout: RequestTimeout, drain: Drain,
		log: slog.New(slog.DiscardHandler), life: context.Background(),
	}
	for _, o := range opts {
		o(s)
	}
	calls, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	s.serving, s.calls = ctx, calls
	stopClosing := context.AfterFunc(ctx, func() { l.Close() })
	defer stopClosing()
	err := s.accept(ctx, l)
	l.Close()
	late := time.AfterFunc(s.drain, cut)
	defer late.Stop()
	s.wg.Wait()
	return err
}

// accept returns nil once ctx has ended. Running out of descriptors or memory passes: it waits and goes on.
func (s *server) accept(ctx context.Context, l net.Listener) error {
	slots := make(chan struct{}, s.maxConns)
	refused := make(chan struct{}, refusals)
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept: %w", err)
		case err != nil:
			s.log.Warn("accept failed", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		select {
		case slots <- struct{}{}:
			s.wg.Go(func() {
				defer func() { <-slots }()
				s.serve(conn)
			})
			continue
		default:
		}
		select {
		case refused <- struct{}{}:
			s.wg.Go(func() {
				defer func() { <-refused }()
				refuse(conn)
			})
		default:
			conn.Close()
		}
	}
}

// refuse tells the caller that there are too many. The request is read and dropped, because closing a TCP connection
// with unread bytes in it resets it, and the answer is lost.
func refuse(conn net.Conn) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second))
	e := wire.NewError("resource_exhausted", "quota", "too many connections to the sandbox")
	if wire.Write(conn, &toolboxv1.Response{Error: wire.ToProto(e)}) != nil {
		return
	}
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	_, _ = io.CopyN(io.Discard, conn, wire.MaxMessage)
}

// serve answers one request after another, until the caller hangs up or says nothing for IdleTimeout, the server stops, or an
// Attach has failed.
func (s *server) serve(conn net.Conn) {
	defer conn.Close()
	// Ends reads and writes of a caller that neither sends nor takes when the server stops.
	stop := context.AfterFunc(s.calls, func() { conn.Close() })
	defer stop()
	requests := bufio.NewReader(conn)
	for s.one(conn, requests) {
	}
}

// one reads a request and answers it. True: the next one has begun to arrive.
func (s *server) one(conn net.Conn, requests *bufio.Reader) bool {
	conn.SetReadDeadline(time.Now().Add(s.requestTimeout))
	var req toolboxv1.Request
	if err := wire.Read(requests, &req); err != nil {
		s.reply(conn, &toolboxv1.Response{Error: badRequest(err)})
		return false
	}
	if !s.authorized(req.Token) {
		s.reply(conn, &toolboxv1.Response{Error: wire.ToProto(wire.NewError("unauthorized", "key_invalid", "wrong token"))})
		return false
	}
	if s.target != nil && (req.GetTarget().GetName() != s.target.Name || req.GetTarget().GetUid() != s.target.Uid) {
		s.reply(conn, &toolboxv1.Response{Error: wire.ToProto(wire.Elsewhere())})
		return false
	}
	conn.SetReadDeadline(time.Time{})
	ctx, cancel := context.WithCancel(s.calls)
	defer cancel()
	if c := req.GetConnect(); c != nil {
		s.connect(ctx, conn, requests, c)
		return false
	}
	next := make(chan bool, 1)
	go func() {
		// Callers send nothing before they have their answer: an error here is their end.
		_, err := requests.Peek(1)
		if err != nil {
			cancel()
		}
		next <- err == nil
	}()
	if a := req.GetAttach(); a != nil {
		// That of an earlier reply on this connection would cut the output off.
		conn.SetWriteDeadline(time.Time{})
		if !s.attach(ctx, conn, a) {
			// The end of the connection is how a caller learns of output that stopped without an End.
			return false
		}
	} else {
		s.reply(conn, s.call(ctx, &req))
	}
	conn.SetReadDeadline(time.Now().Add(IdleTimeout))
	// Nobody waits for an idle connection when the server stops.
	for _, ctx := range []context.Context{s.serving, s.life} {
		stop := context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
		defer stop()
	}
	return <-next
}

func badRequest(err error) *toolboxv1.Error {
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return wire.ToProto(wire.NewError("deadline_exceeded", "timeout", "the request did not arrive in time"))
	case errors.Is(err, wire.ErrTooLarge):
		return wire.ToProto(wire.NewError("invalid_argument", "too_large", "the request is over 1 MiB"))
	}
	return wire.ToProto(wire.NewError("invalid_argument", "validation", "the request is not whole"))
}

// authorized compares digests, so that neither the token's bytes nor its length show in the time taken.
func (s *server) authorized(token string) bool {
	if s.token == "" {
		return true
	}
	want, got := sha256.Sum256([]byte(s.token)), sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(want[:], got[:]) == 1
}

// reply sends a response; one that is over the bound becomes an error that says so.
func (s *server) reply(conn net.Conn, r *toolboxv1.Response) {
	conn.SetWriteDeadline(time.Now().Add(ReplyTimeout))
	err := wire.Write(conn, r)
	if errors.Is(err, wire.ErrTooLarge) {
		err = wire.Write(conn, &toolboxv1.Response{Error: wire.ToProto(err)})
	}
	if err != nil {
		s.log.Debug("reply not sent", "error", err)
	}
}

// attach sends the events of one Attach. True: up to its End.
func (s *server) attach(ctx context.Context, conn net.Conn, r *toolboxv1.Attach) (ended bool) {
	send := func(e *toolboxv1.AttachEvent) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := wire.WriteAttach(conn, e)
		ended = err == nil && e.GetEnd() != nil
		return err
	}
	err := s.guard(func() error { return s.handler.Attach(ctx, r, send) })
	if err != nil && ctx.Err() == nil {
		s.reply(conn, &toolboxv1.Response{Error: s.failure("Attach", err)})
	}
	return ended && err == nil
}
