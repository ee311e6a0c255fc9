package natsserver_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sandtrail/sandtrail/libs/natsserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, o natsserver.Options) *natsserver.Server {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	s, err := natsserver.Start(o)
	require.NoError(t, err)
	t.Cleanup(s.Shutdown)
	return s
}

func connect(t *testing.T, s *natsserver.Server) *nats.Conn {
	t.Helper()
	nc, err := s.Connect()
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

func TestStreamsSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s := start(t, natsserver.Options{Dir: dir, SyncAlways: true})
	js, err := jetstream.New(connect(t, s))
	require.NoError(t, err)
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	require.NoError(t, err)
	_, err = js.Publish(ctx, "s", []byte("kept"))
	require.NoError(t, err)
	s.Shutdown()
	s.Shutdown()

	js, err = jetstream.New(connect(t, start(t, natsserver.Options{Dir: dir})))
	require.NoError(t, err)
	stream, err := js.Stream(ctx, "S")
	require.NoError(t, err)
	m, err := stream.GetMsg(ctx, 1)
	require.NoError(t, err)
	require.Equal(t, "kept", string(m.Data))
}

func TestListensOnLoopbackOrNowhere(t *testing.T) {
	s := start(t, natsserver.Options{Port: -1})
	u, err := url.Parse(s.URL())
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1", u.Hostname())
	nc, err := nats.Connect(s.URL())
	require.NoError(t, err)
	nc.Close()

	quiet := start(t, natsserver.Options{})
	require.Empty(t, quiet.URL())
	require.Zero(t, quiet.Port())
	require.NoError(t, connect(t, quiet).Flush())
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	dir := t.TempDir()
	began := time.Now()
	_, err = natsserver.Start(natsserver.Options{Dir: dir, Port: l.Addr().(*net.TCPAddr).Port})
	require.ErrorContains(t, err, l.Addr().String()+" is in use by another program")
	require.Less(t, time.Since(began), 5*time.Second, "it must not wait until it gives up")
	start(t, natsserver.Options{Dir: dir}) // the failed start has left the directory
}

func TestDirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	start(t, natsserver.Options{Dir: dir})
	_, err := natsserver.Start(natsserver.Options{Dir: dir})
	require.ErrorContains(t, err, "in use by another server")
	_, err = natsserver.Start(natsserver.Options{})
	require.ErrorContains(t, err, "no directory")
	_, err = natsserver.Start(natsserver.Options{Dir: "/proc/nowhere"})
	require.ErrorContains(t, err, "stream directory")
}

func TestTokenIsRequired(t *testing.T) {
	s := start(t, natsserver.Options{Port: -1, Token: "t0ken"})
	for name, opts := range map[string][]nats.Option{"none": nil, "wrong": {nats.Token("other")}} {
		_, err := nats.Connect(s.URL(), opts...)
		require.ErrorIs(t, err, nats.ErrAuthorization, name)
	}
	require.NotContains(t, s.URL(), "t0ken")
	nc, err := nats.Connect(s.URL(), nats.Token("t0ken"))
	require.NoError(t, err)
	nc.Close()
	require.NoError(t, connect(t, s).Flush())
}

func TestPayloadIsBounded(t *testing.T) {
	nc := connect(t, start(t, natsserver.Options{}))
	require.EqualValues(t, natsserver.DefaultMaxPayload, nc.MaxPayload())
	require.ErrorIs(t, nc.Publish("s", make([]byte, natsserver.DefaultMaxPayload+1)), nats.ErrMaxPayload)
	small := connect(t, start(t, natsserver.Options{MaxPayload: 1000}))
	require.EqualValues(t, 1000, small.MaxPayload())
}

func TestLogHoldsNoPayload(t *testing.T) {
	var out lockedBuffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug - 10}))
	s := start(t, natsserver.Options{Log: log})
	nc := connect(t, s)
	sub, err := nc.SubscribeSync("s")
	require.NoError(t, err)
	require.NoError(t, nc.Publish("s", []byte("hush-hush")))
	_, err = sub.NextMsg(5 * time.Second)
	require.NoError(t, err)
	nc.Close()
	s.Shutdown()
	require.Contains(t, out.String(), "Starting nats-server")
	require.Contains(t, out.String(), "component=nats-server")
	require.NotContains(t, out.String(), "hush-hush")
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
