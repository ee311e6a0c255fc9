package server_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
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

// pooled is a client of f whose dials are counted.
func pooled(t *testing.T, f *fixture) (*client.Client, *client.Pool, *atomic.Int64) {
	var dials atomic.Int64
	pool := client.NewPool(func(string) func(context.Context) (net.Conn, error) {
		return func(ctx context.Context) (net.Conn, error) {
			dials.Add(1)
			return f.dial(ctx)
		}
	})
	t.Cleanup(pool.Close)
	return pool.Client("s1"), pool, &dials
}

func TestCallsShareAConnection(t *testing.T) {
	f := serve(t, &handler{hello: alive, attach: func(_ context.Context, send func(*toolboxv1.AttachEvent) error) error {
		return send(&toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_End{End: &toolboxv1.End{}}})
	}}, "")
	c, pool, dials := pooled(t, &f)
	for range 50 {
		_, err := c.Hello(t.Context(), &toolboxv1.Hello{})
		require.NoError(t, err)
		_, err = pool.Client("s1").Hello(t.Context(), &toolboxv1.Hello{})
		require.NoError(t, err)
	}
	require.EqualValues(t, 1, dials.Load())
	for range 20 {
		s, err := c.Attach(t.Context(), &toolboxv1.Attach{})
		require.NoError(t, err)
		_, err = s.Recv()
		require.NoError(t, err)
		s.Close()
		s.Close()
		_, err = s.Recv()
		require.ErrorIs(t, err, io.EOF)
		_, err = c.Hello(t.Context(), &toolboxv1.Hello{})
		require.NoError(t, err)
	}
	require.EqualValues(t, 1, dials.Load(), "an Attach gives its connection back behind the End")
	s, err := c.Attach(t.Context(), &toolboxv1.Attach{})
	require.NoError(t, err)
	s.Close()
	_, err = c.Hello(t.Context(), &toolboxv1.Hello{})
	require.NoError(t, err)
	require.EqualValues(t, 2, dials.Load(), "one that was left before is closed")
	pool.Close()
	_, err = c.Hello(t.Context(), &toolboxv1.Hello{})
	require.NoError(t, err, "a closed pool only keeps nothing")
}

// Every answer is that of its own call, whatever was cancelled on the connection before.
func TestSharedConnectionsNeverMixAnswers(t *testing.T) {
	var calls atomic.Int64
	f := serve(t, &handler{hello: func(ctx context.Context) (*toolboxv1.HelloReply, error) {
		n := calls.Add(1)
		if n%3 == 0 {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(2 * time.Millisecond):
			}
		}
		return &toolboxv1.HelloReply{Running: uint32(n), Alive: true}, nil
	}}, "")
	_, pool, _ := pooled(t, &f)
	var mu sync.Mutex
	seen := map[uint32]bool{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 100 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i%4)*time.Millisecond)
				r, err := pool.Client("s1").Hello(ctx, &toolboxv1.Hello{})
				cancel()
				if err != nil {
					continue
				}
				mu.Lock()
				if seen[r.Running] {
					t.Errorf("answer %d came twice", r.Running)
				}
				seen[r.Running] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.NotEmpty(t, seen)
}

// A keeper that was replaced has closed what was kept: the call is made again on a new connection.
func TestAConnectionThatWasClosedMeanwhileIsReplaced(t *testing.T) {
	first := serve(t, &handler{hello: alive}, "")
	second := serve(t, &handler{hello: alive}, "")
	f := first
	c, _, dials := pooled(t, &f)
	_, err := c.Hello(t.Context(), &toolboxv1.Hello{})
	require.NoError(t, err)
	first.stop()
	require.NoError(t, <-first.done)
	f = second
	_, err = c.Hello(t.Context(), &toolboxv1.Hello{})
	require.NoError(t, err)
	require.EqualValues(t, 2, dials.Load())
}

// An open connection says that the sandbox lives; it closes with it, also in the middle of a call, and calls are answered still.
func TestAliveIsWhatHelloWouldSay(t *testing.T) {
	life, end := context.WithCancel(t.Context())
	during := func() {}
	f := serve(t, &handler{hello: func(ctx context.Context) (*toolboxv1.HelloReply, error) {
		during()
		return &toolboxv1.HelloReply{Alive: life.Err() == nil}, nil
	}}, "", server.WithLife(life))
	c, pool, dials := pooled(t, &f)
	other, late, _ := pooled(t, &f)
	require.False(t, pool.Alive("s1"), "nothing is known yet")
	_, err := c.Hello(t.Context(), &toolboxv1.Hello{})
	require.NoError(t, err)
	require.True(t, pool.Alive("s1"))
	require.False(t, pool.Alive("s2"))

	during = end
	_, err = other.Hello(t.Context(), &toolboxv1.Hello{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !pool.Alive("s1") && !late.Alive("s1") }, 20*time.Second, time.Millisecond)
	for range 3 {
		r, err := c.Hello(t.Context(), &toolboxv1.Hello{})
		require.NoError(t, err)
		require.False(t, r.Alive)
	}
	require.Greater(t, dials.Load(), int64(1))
	require.Eventually(t, func() bool { return !pool.Alive("s1") }, 20*time.Second, time.Millisecond)
}

func TestAnIdleConnectionDoesNotHoldUpTheStop(t *testing.T) {
	f := serve(t, &handler{hello: alive}, "", server.WithDrain(time.Hour))
	c, _, _ := pooled(t, &f)
	_, err := c.Hello(t.Context(), &toolboxv1.Hello{})
	require.NoError(t, err)
	f.stop()
	select {
	case err := <-f.done:
		require.NoError(t, err)
	case <-time.After(20 * time.Second):
		t.Fatal("it waits for the idle connection")
	}
}

// A caller that hangs up between two calls is no broken request, and one that sends the next before its answer loses nothing.
func TestRequestsBehindOneAnother(t *testing.T) {
	f := serve(t, &handler{hello: alive}, "")
	conn, err := f.dial(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	for range 3 {
		require.NoError(t, wire.Write(conn, &toolboxv1.Request{Call: &toolboxv1.Request_Hello{Hello: &toolboxv1.Hello{}}}))
	}
	for i := range 3 {
		var res toolboxv1.Response
		require.NoError(t, wire.Read(conn, &res), fmt.Sprint(i))
		require.True(t, res.GetHello().GetAlive())
	}
}

// timed remembers the last deadline of its writes.
type timed struct {
	net.Conn
	deadline *atomic.Pointer[time.Time]
}

func (t timed) SetWriteDeadline(at time.Time) error {
	t.deadline.Store(&at)
	return t.Conn.SetWriteDeadline(at)
}

type timedListener struct {
	net.Listener
	deadline atomic.Pointer[time.Time]
}

func (l *timedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return timed{c, &l.deadline}, nil
}

// Output may take as long as it likes, also on a connection that answered other calls before: their bounds are not its own.
func TestOutputHasNoDeadline(t *testing.T) {
	inner, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	l := &timedListener{Listener: inner}
	var during time.Time
	h := &handler{hello: alive, attach: func(_ context.Context, send func(*toolboxv1.AttachEvent) error) error {
		during = *l.deadline.Load()
		return send(&toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_End{End: &toolboxv1.End{}}})
	}}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, l, h) }()
	var dials atomic.Int64
	pool := client.NewPool(func(string) func(context.Context) (net.Conn, error) {
		return func(ctx context.Context) (net.Conn, error) {
			dials.Add(1)
			return (&net.Dialer{}).DialContext(ctx, "unix", inner.Addr().String())
		}
	})
	t.Cleanup(func() {
		pool.Close()
		cancel()
		require.NoError(t, <-served)
	})
	c := pool.Client("s1")
	for range 2 {
		_, err := c.Hello(t.Context(), &toolboxv1.Hello{})
		require.NoError(t, err)
		require.False(t, l.deadline.Load().IsZero(), "a reply has a bound")
		s, err := c.Attach(t.Context(), &toolboxv1.Attach{})
		require.NoError(t, err)
		_, err = s.Recv()
		require.NoError(t, err)
		s.Close()
		require.True(t, during.IsZero(), "%v", during)
	}
	require.EqualValues(t, 1, dials.Load(), "all on one connection")
}
