package app_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/app"
)

const (
	patience = 20 * time.Second
	tick     = 5 * time.Millisecond
	beat     = 200 * time.Millisecond
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(holdEnv); addr != "" {
		hold(addr)
		return
	}
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*Server).Start.func3"))
}

// world is a NATS server, a scripted worker behind it and a gateway before it.
type world struct {
	*natstest.Fixture
	t    testing.TB
	peer *peer
	logs *locked
	seal string
	keys string
	app  *app.App
	conn *grpc.ClientConn
	// lag is how far the replicas that further gateways read are behind; 0: they read the newest.
	lag time.Duration
	computev1.ComputeServiceClient
}

// newWorld starts everything. keys are `name=tenant` pairs whose key is key(name); without any it is development mode.
func newWorld(t testing.TB, keys map[string]string, change ...func(*app.Config)) *world {
	t.Helper()
	w := &world{Fixture: natstest.Start(t), t: t, logs: &locked{}, seal: filepath.Join(t.TempDir(), "seal")}
	if len(keys) > 0 {
		w.keys = filepath.Join(t.TempDir(), "keys.json")
		var entries []map[string]any
		for name, tenant := range keys {
			sum := sha256.Sum256([]byte(secret(name)))
			e := map[string]any{"name": name, "tenant": tenant, "sha256": hex.EncodeToString(sum[:])}
			if name == "expired" {
				e["expires"] = time.Now().Add(-time.Minute)
			}
			entries = append(entries, e)
		}
		data, err := json.Marshal(map[string]any{"keys": entries})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(w.keys, data, 0o600))
	}
	w.beat(natstest.Worker, time.Now().Add(time.Hour)) // one that is heard of for as long as the test takes
	w.peer = newPeer(w)
	w.app, w.conn = w.gateway(w.connect(), change...)
	w.ComputeServiceClient = computev1.NewComputeServiceClient(w.conn)
	return w
}

// beat stores a heartbeat of a worker, as of then.
func (w *world) beat(worker string, then time.Time) {
	w.t.Helper()
	kv, err := w.JS.KeyValue(w.t.Context(), topology.BucketWorker)
	require.NoError(w.t, err)
	data, err := proto.Marshal(&commandsv1.WorkerStatus{Worker: worker, Driver: "gvisor", Time: timestamppb.New(then), MaxSandboxes: 9})
	require.NoError(w.t, err)
	_, err = kv.Put(w.t.Context(), worker, data)
	require.NoError(w.t, err)
}

// connect is a further connection to NATS that ends with the test.
func (w *world) connect() *nats.Conn {
	w.t.Helper()
	nc, err := nats.Connect(w.URL, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	require.NoError(w.t, err)
	w.t.Cleanup(nc.Close)
	return nc
}

// gateway starts a gateway on the connection, and a client of it; both end with the test.
func (w *world) gateway(nc *nats.Conn, change ...func(*app.Config)) (*app.App, *grpc.ClientConn) {
	w.t.Helper()
	cfg := app.Config{
		GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0", KeysFile: w.keys, SealKeyFile: w.seal, Heartbeat: beat,
		DisconnectGrace: 50 * time.Millisecond, Drain: 300 * time.Millisecond, StartWait: patience,
	}
	for _, c := range change {
		c(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	d := app.Deps{NC: nc, Log: w.logger(), Registry: prometheus.NewRegistry()}
	if w.lag > 0 {
		d.JS = w.Behind(w.t, nc, w.lag)
	}
	a, err := app.New(ctx, cfg, d)
	require.NoError(w.t, err)
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		require.NoError(w.t, <-done)
	})
	return a, w.dial(a)
}

func (w *world) logger() *slog.Logger {
	return slog.New(telemetry.NewHandler(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug})))
}

func (w *world) dial(a *app.App) *grpc.ClientConn {
	conn, err := grpc.NewClient(a.GRPC(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(20<<20)))
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, conn.Close()) })
	return conn
}

// mute stops the server from repeating what a stream stores, so that a test decides which live messages arrive.
func (w *world) mute(streams ...string) {
	w.t.Helper()
	for _, name := range streams {
		s, err := w.JS.Stream(w.t.Context(), name)
		require.NoError(w.t, err)
		cfg := s.CachedInfo().Config
		cfg.RePublish = nil
		_, err = w.JS.UpdateStream(w.t.Context(), cfg)
		require.NoError(w.t, err)
	}
}

func secret(name string) string { return "st_" + name + "_0123456789abcdef0123456789abcdef" }

// as is the context of a call with the key of a name.
func (w *world) as(name string) context.Context { return as(w.t.Context(), name) }

func as(ctx context.Context, name string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "ApiKey "+secret(name))
}

func keyed(ctx context.Context, key string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "idempotency-key", key)
}

// create makes a sandbox of tenant acme and waits until it is ready.
func (w *world) create(ctx context.Context) string {
	w.t.Helper()
	r, err := w.CreateSandbox(ctx, &computev1.CreateSandboxRequest{TenantId: "acme", Image: "python"})
	require.NoError(w.t, err)
	w.until(func() bool {
		d, err := w.DescribeSandbox(ctx, &computev1.DescribeSandboxRequest{SandboxId: r.GetSandboxId()})
		return err == nil && d.GetStatus() == computev1.SandboxStatus_SANDBOX_STATUS_READY
	})
	return r.GetSandboxId()
}

func (w *world) until(done func() bool) {
	w.t.Helper()
	require.Eventually(w.t, done, patience, tick)
}

// exec starts a command whose name is that of a script of the peer.
func (w *world) exec(ctx context.Context, box, command string) grpc.ServerStreamingClient[computev1.ExecEvent] {
	w.t.Helper()
	s, err := w.ExecCommand(ctx, &computev1.ExecCommandRequest{SandboxId: box, Command: command})
	require.NoError(w.t, err)
	return s
}

// transcript is what came on a stream until its end.
type transcript struct {
	out, err  bytes.Buffer
	chunks    []uint64
	beats     int
	completed *computev1.ExecCompleted
	execID    string
	failure   error
}

func drainStream(s grpc.ServerStreamingClient[computev1.ExecEvent]) *transcript {
	r := &transcript{}
	for {
		e, err := s.Recv()
		if err != nil {
			r.failure = err
			if h, herr := s.Header(); herr == nil && len(h.Get("sandtrail-exec-id")) > 0 {
				r.execID = h.Get("sandtrail-exec-id")[0]
			}
			return r
		}
		switch b := e.GetEvent().(type) {
		case *computev1.ExecEvent_Stdout:
			r.out.Write(b.Stdout.GetData())
		case *computev1.ExecEvent_Stderr:
			r.err.Write(b.Stderr.GetData())
		case *computev1.ExecEvent_Heartbeat:
			r.beats++
		case *computev1.ExecEvent_Completed:
			r.completed = b.Completed
		}
		if e.GetChunk() > 0 {
			r.chunks = append(r.chunks, e.GetChunk())
		}
	}
}

// inOrder checks that chunks from first on came, each once.
func (r *transcript) inOrder(t testing.TB, first, last uint64) {
	t.Helper()
	require.Len(t, r.chunks, int(last-first+1))
	for i, n := range r.chunks {
		require.Equal(t, first+uint64(i), n)
	}
}

// detail is the ErrorDetail of a failed call, which every one has.
func detail(t testing.TB, err error) *commonv1.ErrorDetail {
	t.Helper()
	require.Error(t, err)
	for _, d := range status.Convert(err).Details() {
		if e, ok := d.(*commonv1.ErrorDetail); ok {
			require.NotEmpty(t, e.GetCorrelationId(), "%v", err)
			return e
		}
	}
	require.Fail(t, "no ErrorDetail", "%v", err)
	return nil
}

// everything is what stands in a stream, headers and data, as one text.
func everything(t testing.TB, js jetstream.JetStream, stream string) string {
	t.Helper()
	s, err := js.Stream(t.Context(), stream)
	require.NoError(t, err)
	info, err := s.Info(t.Context())
	require.NoError(t, err)
	var b bytes.Buffer
	for seq := max(info.State.FirstSeq, 1); seq <= info.State.LastSeq; seq++ {
		m, err := s.GetMsg(t.Context(), seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		require.NoError(t, err)
		fmt.Fprintln(&b, m.Subject, m.Header, string(m.Data))
	}
	return b.String()
}

type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
