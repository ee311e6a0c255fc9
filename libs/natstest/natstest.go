// Package natstest gives a test a real NATS server with every stream, bucket and consumer in place.
package natstest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/natsserver"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// Worker is the one whose consumers exist.
const Worker = "w1"

const patience = 2 * time.Minute

// attempt bounds one try at making the topology; what it made stays.
const attempt = 10 * time.Second

// Fixture is a running server, or cluster, that ends with its test.
type Fixture struct {
	NC *nats.Conn
	JS jetstream.JetStream
	// URL for further connections; it stays the same over Restart.
	URL string
	// Options are those of the topology, for topology.Diff and EnsureWorker.
	Options topology.Options
	// Restart stops the server, or every server of the cluster, starts it again on the same store and returns when JetStream
	// works again on NC.
	Restart func()
	// Stop stops it and Resume starts it again: for tests of an outage.
	Stop, Resume func()
	// Bounce stops one server of a cluster and starts it again; it returns when that one takes connections. nil for a single
	// server.
	Bounce func(i int)
	// Lose restarts a single server so that it has lost what a stream took while do ran, as one that lost power does. nil for a
	// cluster.
	Lose func(stream string, do func())
}

// current is what a connection in this process connects to: the server of the moment.
type current struct {
	mu     sync.Mutex
	server *natsserver.Server
}

func (c *current) InProcessConn() (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil {
		return nil, errors.New("the server is stopped")
	}
	return c.server.InProcessConn()
}

func (c *current) set(s *natsserver.Server) *natsserver.Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.server
	c.server = s
	return old
}

// Start starts a single server in t.TempDir.
func Start(t testing.TB) *Fixture {
	t.Helper()
	return StartWith(t, natsserver.Options{}, topology.Options{})
}

// StartWith is Start with options; Dir and Port are set where they are empty.
func StartWith(t testing.TB, so natsserver.Options, to topology.Options) *Fixture {
	t.Helper()
	if so.Dir == "" {
		so.Dir = t.TempDir()
	}
	if so.Port == 0 {
		so.Port = -1
	}
	c := &current{}
	resume := func() {
		s, err := natsserver.Start(so)
		require.NoError(t, err)
		so.Port = s.Port()
		c.set(s)
	}
	stop := func() {
		if s := c.set(nil); s != nil {
			s.Shutdown()
		}
	}
	resume()
	t.Cleanup(stop)
	nc, err := nats.Connect("", append(reconnecting(), nats.InProcessServer(c))...)
	require.NoError(t, err)
	f := finish(t, nc, c.server.URL(), to, stop, resume)
	f.Lose = func(stream string, do func()) {
		store, kept := filepath.Join(so.Dir, "jetstream", "$G", "streams", stream), filepath.Join(t.TempDir(), "kept")
		f.Stop()
		require.NoError(t, os.CopyFS(kept, os.DirFS(store)))
		f.Resume()
		do()
		f.Stop()
		require.NoError(t, os.RemoveAll(store))
		require.NoError(t, os.CopyFS(store, os.DirFS(kept)))
		f.Resume()
	}
	return f
}

// Cluster starts three servers, each stream with three replicas. It takes a few seconds.
func Cluster(t testing.TB) *Fixture {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: a cluster of three servers")
	}
	const n = 3
	ports := freePorts(t, 2*n)
	var routes []string
	for _, p := range ports[:n] {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", p))
	}
	dir := t.TempDir()
	servers := make([]*natsserver.Server, n)
	start := func(i int) (err error) {
		servers[i], err = natsserver.Start(natsserver.Options{
			Dir: filepath.Join(dir, fmt.Sprintf("n%d", i)), Name: fmt.Sprintf("n%d", i), Port: ports[n+i],
			Cluster: &natsserver.Cluster{Name: "test", Port: ports[i], Routes: routes},
		})
		return err
	}
	resume := func() {
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { errs[i] = start(i) })
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs...))
		require.Eventually(t, func() bool {
			for _, s := range servers {
				if s.Leading() {
					return true
				}
			}
			return false
		}, patience, 20*time.Millisecond, "no leader was elected")
	}
	stop := func() {
		for i, s := range servers {
			if s != nil {
				s.Shutdown()
			}
			servers[i] = nil
		}
	}
	t.Cleanup(stop)
	resume()
	nc, err := nats.Connect(servers[0].URL(), reconnecting()...)
	require.NoError(t, err)
	f := finish(t, nc, servers[0].URL(), topology.Options{Replicas: n}, stop, resume)
	f.Bounce = func(i int) {
		servers[i].Shutdown()
		require.NoError(t, start(i))
	}
	return f
}

func reconnecting() []nats.Option {
	return []nats.Option{
		nats.MaxReconnects(-1), nats.ReconnectWait(10 * time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.RetryOnFailedConnect(false),
	}
}

// finish ensures the topology and fills in the fixture.
func finish(t testing.TB, nc *nats.Conn, url string, to topology.Options, stop, resume func()) *Fixture {
	t.Helper()
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	// A new cluster has a leader some time before it can place streams, and a request that it gets while it elects one may never
	// be answered: each attempt has a time of its own.
	ensure := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), attempt)
		defer cancel()
		if err := topology.Ensure(ctx, js, to); err != nil {
			return err
		}
		return topology.EnsureWorker(ctx, js, Worker, to)
	}
	err = ensure()
	for began := time.Now(); err != nil && time.Since(began) < patience; err = ensure() {
		t.Logf("ensure the topology: %v", err)
		select {
		case <-time.After(50 * time.Millisecond):
		case <-t.Context().Done():
			return nil
		}
	}
	require.NoError(t, err, "ensure the topology")
	f := &Fixture{NC: nc, JS: js, URL: url, Options: to, Stop: stop}
	f.Resume = func() {
		resume()
		require.Eventually(t, func() bool { return answers(js) }, patience, 20*time.Millisecond, "JetStream is back")
	}
	f.Restart = func() {
		stop()
		f.Resume()
	}
	return f
}

// answers reports whether every stream has a leader again.
func answers(js jetstream.JetStream) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, name := range []string{
		topology.StreamEvents, topology.StreamCommands, topology.StreamOutput, topology.StreamDead, topology.StreamAdvisories,
		topology.StreamCalls,
	} {
		if _, err := js.Stream(ctx, name); err != nil {
			return false
		}
	}
	return true
}

// freePorts are ports that were free a moment ago. All are held until the last is found, so that none comes twice.
func freePorts(t testing.TB, n int) []int {
	t.Helper()
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer func() { require.NoError(t, l.Close()) }()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}
