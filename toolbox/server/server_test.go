package server_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/server"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

// handler answers the calls under test; all others are a nil method and panic.
type handler struct {
	server.Handler
	hello   func(context.Context) (*toolboxv1.HelloReply, error)
	attach  func(context.Context, func(*toolboxv1.AttachEvent) error) error
	connect func(context.Context) (io.ReadWriteCloser, error)
}

func (h *handler) Connect(ctx context.Context, _ *toolboxv1.Connect) (io.ReadWriteCloser, error) {
	return h.connect(ctx)
}

func (h *handler) Hello(ctx context.Context, _ *toolboxv1.Hello) (*toolboxv1.HelloReply, error) {
	return h.hello(ctx)
}

func (h *handler) Attach(ctx context.Context, _ *toolboxv1.Attach, send func(*toolboxv1.AttachEvent) error) error {
	return h.attach(ctx, send)
}

func alive(context.Context) (*toolboxv1.HelloReply, error) {
	return &toolboxv1.HelloReply{Alive: true}, nil
}

type fixture struct {
	*client.Client
	dial func(context.Context) (net.Conn, error)
	stop context.CancelFunc
	done chan error
}

// serve runs a server below a directory whose path is longer than a socket's may be.
func serve(t *testing.T, h server.Handler, token string, opts ...server.Option) fixture {
	t.Helper()
	state := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	dir := filepath.Join(state, "sandboxes", "s1")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	l, err := server.Listen(dir)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	f := fixture{dial: client.KeeperDialer(state, "s1"), stop: stop, done: make(chan error, 1)}
	f.Client = client.New(f.dial, token)
	go func() { f.done <- server.Serve(ctx, l, h, opts...) }()
	t.Cleanup(stop)
	return f
}

func hello(t *testing.T, f fixture) error {
	_, err := f.Hello(t.Context(), &toolboxv1.Hello{})
	return err
}

func TestTokenIsNeeded(t *testing.T) {
	f := serve(t, &handler{hello: alive}, "right", server.WithToken("right"))
	require.NoError(t, hello(t, f))
	for _, token := range []string{"", "wrong", "righ", "right "} {
		_, err := client.New(f.dial, token).Hello(t.Context(), &toolboxv1.Hello{})
		require.ErrorIs(t, err, &client.Error{Code: "unauthorized", Reason: "key_invalid"})
	}
}

func TestConnectionsOverTheLimitAreRefusedAtOnce(t *testing.T) {
	release := make(chan struct{})
	var inside atomic.Int64
	f := serve(t, &handler{hello: func(ctx context.Context) (*toolboxv1.HelloReply, error) {
		inside.Add(1)
		<-release
		return alive(ctx)
	}}, "", server.WithMaxConns(3))
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { require.NoError(t, hello(t, f)) })
	}
	require.Eventually(t, func() bool { return inside.Load() == 3 }, 5*time.Second, time.Millisecond)
	for range 20 {
		err := hello(t, f)
		require.ErrorIs(t, err, &client.Error{Code: "resource_exhausted", Reason: "quota"})
	}
	close(release)
	wg.Wait()
	require.Eventually(t, func() bool { return hello(t, f) == nil }, 5*time.Second, time.Millisecond)
	require.LessOrEqual(t, inside.Load(), int64(5))
}

// Callers that connect and say nothing, or half of something, do not hold a connection.
func TestSlowRequestsAreCut(t *testing.T) {
	f := serve(t, &handler{hello: alive}, "", server.WithRequestTimeout(50*time.Millisecond), server.WithMaxConns(2))
	for _, sent := range []string{"", "\x00\x00", "\x00\x00\x00\x09abc"} {
		conn, err := f.dial(t.Context())
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.Write([]byte(sent))
		require.NoError(t, err)
		var res toolboxv1.Response
		require.NoError(t, wire.Read(conn, &res))
		require.Equal(t, "timeout", res.Error.GetReason())
		require.Equal(t, io.EOF, wire.Read(conn, &res))
	}
	require.NoError(t, hello(t, f))
}

func TestMalformedRequests(t *testing.T) {
	f := serve(t, &handler{hello: alive}, "")
	for sent, reason := range map[string]string{
		"\xff\xff\xff\xff":         "too_large",
		"\x00\x00\x00\x02\xff\xff": "validation",
		"\x00\x00\x00\x00":         "validation",
	} {
		conn, err := f.dial(t.Context())
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.Write([]byte(sent))
		require.NoError(t, err)
		var res toolboxv1.Response
		require.NoError(t, wire.Read(conn, &res))
		require.Equal(t, reason, res.Error.GetReason())
	}
}

func TestPanicIsAnErrorAndItsValueStaysInside(t *testing.T) {
	var logged bytes.Buffer
	f := serve(t, &handler{
		hello:  func(context.Context) (*toolboxv1.HelloReply, error) { panic("canary-value") },
		attach: func(context.Context, func(*toolboxv1.AttachEvent) error) error { panic("canary-value") },
	}, "", server.WithLog(slog.New(slog.NewTextHandler(&logged, nil))))
	internal := &client.Error{Code: "internal", Reason: "internal"}
	require.ErrorIs(t, hello(t, f), internal)
	s, err := f.Attach(t.Context(), &toolboxv1.Attach{})
	require.NoError(t, err)
	_, err = s.Recv()
	require.ErrorIs(t, err, internal)
	_, err = f.Usage(t.Context(), &toolboxv1.Usage{})
	require.ErrorIs(t, err, internal)
	f.stop()
	require.NoError(t, <-f.done)
	require.Contains(t, logged.String(), "panicked")
	require.NotContains(t, logged.String(), "canary-value")
}

func TestHandlerHearsThatTheCallerHungUp(t *testing.T) {
	ended := make(chan error, 2)
	wait := func(ctx context.Context) error { <-ctx.Done(); ended <- ctx.Err(); return ctx.Err() }
	f := serve(t, &handler{
		hello:  func(ctx context.Context) (*toolboxv1.HelloReply, error) { return nil, wait(ctx) },
		attach: func(ctx context.Context, _ func(*toolboxv1.AttachEvent) error) error { return wait(ctx) },
	}, "")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := f.Hello(ctx, &toolboxv1.Hello{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Error(t, <-ended)
	ctx, cancel = context.WithCancel(t.Context())
	s, err := f.Attach(ctx, &toolboxv1.Attach{})
	require.NoError(t, err)
	cancel()
	_, err = s.Recv()
	require.ErrorIs(t, err, context.Canceled)
	require.Error(t, <-ended)
}

func TestStreamThatEndsWithoutAnEndIsUnavailable(t *testing.T) {
	f := serve(t, &handler{attach: func(_ context.Context, send func(*toolboxv1.AttachEvent) error) error {
		return send(&toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_Data{Data: &toolboxv1.Data{Data: []byte("x")}}})
	}}, "")
	s, err := f.Attach(t.Context(), &toolboxv1.Attach{})
	require.NoError(t, err)
	defer s.Close()
	_, err = s.Recv()
	require.NoError(t, err)
	_, err = s.Recv()
	require.ErrorIs(t, err, client.ErrUnavailable)
}

// A call under way is answered after the stop; one that goes on for ever is cut at the end of the drain time.
func TestDrain(t *testing.T) {
	inside, release := make(chan struct{}), make(chan struct{})
	f := serve(t, &handler{
		hello: func(ctx context.Context) (*toolboxv1.HelloReply, error) {
			inside <- struct{}{}
			<-release
			return alive(ctx)
		},
		attach: func(ctx context.Context, _ func(*toolboxv1.AttachEvent) error) error {
			inside <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		},
	}, "", server.WithDrain(300*time.Millisecond))
	answered := make(chan error, 1)
	go func() { answered <- hello(t, f) }()
	<-inside
	s, err := f.Attach(t.Context(), &toolboxv1.Attach{})
	require.NoError(t, err)
	<-inside
	f.stop()
	require.Eventually(t, func() bool {
		conn, err := f.dial(t.Context())
		if err == nil {
			conn.Close()
		}
		return err != nil
	}, 5*time.Second, time.Millisecond)
	close(release)
	require.NoError(t, <-answered)
	_, err = s.Recv()
	require.ErrorIs(t, err, client.ErrUnavailable)
	require.NoError(t, <-f.done)
}

func TestReplyOverTheBoundIsSaid(t *testing.T) {
	f := serve(t, &handler{hello: func(context.Context) (*toolboxv1.HelloReply, error) {
		return &toolboxv1.HelloReply{Reason: strings.Repeat("x", wire.MaxMessage)}, nil
	}}, "")
	require.ErrorIs(t, hello(t, f), &client.Error{Code: "resource_exhausted", Reason: "too_large"})
}

// A caller that goes while it waits for a connection takes none that comes later.
func TestWhoWaitedForAConnectionAndWent(t *testing.T) {
	waiting, over := make(chan struct{}), make(chan error, 1)
	f := serve(t, &handler{connect: func(ctx context.Context) (io.ReadWriteCloser, error) {
		close(waiting)
		<-ctx.Done()
		over <- ctx.Err()
		return nil, ctx.Err()
	}}, "")
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := f.Connect(ctx, &toolboxv1.Connect{Outgoing: true})
		gone <- err
	}()
	<-waiting
	cancel()
	require.ErrorIs(t, <-gone, context.Canceled)
	require.ErrorIs(t, <-over, context.Canceled)
}

// What a caller sends before it has its answer, and behind it, all comes.
func TestBytesOfACallerThatDoesNotWait(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	release := make(chan struct{})
	f := serve(t, &handler{connect: func(context.Context) (io.ReadWriteCloser, error) {
		<-release
		return far, nil
	}}, "")
	conn, err := f.dial(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, wire.Write(conn, &toolboxv1.Request{Call: &toolboxv1.Request_Connect{Connect: &toolboxv1.Connect{Port: 1}}}))
	_, err = io.WriteString(conn, "early ")
	require.NoError(t, err)
	close(release)
	require.NoError(t, wire.Read(conn, &toolboxv1.Response{}))
	_, err = io.WriteString(conn, "late")
	require.NoError(t, err)
	got := make([]byte, len("early late"))
	_, err = io.ReadFull(near, got)
	require.NoError(t, err)
	require.Equal(t, "early late", string(got))
}
