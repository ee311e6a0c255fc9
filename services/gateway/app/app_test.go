package app_test

import (
	"context"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/app"
)

func TestEveryMistakeInTheConfigurationAtOnce(t *testing.T) {
	err := app.Config{
		GRPC: "0.0.0.0:1", HTTP: "nonsense", Runtime: time.Hour, MaxRuntime: time.Minute, ExecTimeout: 48 * time.Hour, StartWait: -1,
		DestroyWait: time.Microsecond, DisconnectGrace: -time.Second, Heartbeat: 11 * time.Second, Drain: -1, WorkspaceBytes: 200 << 30,
	}.Validate()
	for _, want := range []string{
		"grpc: 0.0.0.0:1", "http: ", "seal-key-file", "runtime: ", "exec-timeout: ", "start-wait: ", "destroy-wait: ", "disconnect-grace: ",
		"heartbeat: ", "drain: ", "workspace-bytes: ",
	} {
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, app.Config{SealKeyFile: "k"}.Validate(), "the zero value is usable")
}

// Without keys whoever reaches the port is let in, so only this host may.
func TestListenersWithoutKeysAreLoopback(t *testing.T) {
	for addr, ok := range map[string]bool{
		"127.0.0.1:1": true, "[::1]:1": true, "localhost:1": true, "127.9.9.9:1": true,
		":1": false, "0.0.0.0:1": false, "[::]:1": false, "10.0.0.1:1": false, "example.com:1": false, "localhost.example.com:1": false,
	} {
		require.Equal(t, ok, app.Config{GRPC: addr, SealKeyFile: "k"}.Validate() == nil, addr)
		require.Equal(t, ok, app.Config{HTTP: addr, SealKeyFile: "k"}.Validate() == nil, addr)
		require.NoError(t, app.Config{GRPC: addr, HTTP: addr, SealKeyFile: "k", KeysFile: "f"}.Validate())
	}
}

func TestPortInUseIsAnErrorOfNew(t *testing.T) {
	w := newWorld(t, nil)
	_, err := app.New(t.Context(), app.Config{GRPC: w.app.GRPC(), SealKeyFile: w.seal}, app.Deps{NC: w.NC, Registry: prometheus.NewRegistry()})
	require.ErrorContains(t, err, "listen for gRPC")
	registry := prometheus.NewRegistry()
	_, err = app.New(t.Context(), app.Config{GRPC: "127.0.0.1:0", HTTP: w.app.HTTP(), SealKeyFile: w.seal}, app.Deps{NC: w.NC, Registry: registry})
	require.ErrorContains(t, err, "listen for HTTP")
	_, err = app.New(t.Context(), app.Config{GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0", SealKeyFile: w.seal}, app.Deps{NC: w.NC, Registry: registry})
	require.ErrorContains(t, err, "metrics", "no panic")
}

// A stop lets a call that is at work finish, takes no new one, and cuts streams when the drain is over; their execs go on.
func TestStopDrains(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	a, err := app.New(ctx, app.Config{
		GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0", SealKeyFile: w.seal, Heartbeat: beat, DisconnectGrace: time.Millisecond, Drain: time.Second,
	}, app.Deps{NC: w.connect(), Log: w.logger(), Registry: prometheus.NewRegistry()})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	c := computev1.NewComputeServiceClient(w.dial(a))
	s, err := c.ExecCommand(t.Context(), &computev1.ExecCommandRequest{SandboxId: box, Command: "wait"})
	require.NoError(t, err)
	h, err := s.Header()
	require.NoError(t, err)

	arrived, release := make(chan struct{}), make(chan struct{})
	w.peer.set(func() {
		w.peer.onPart = func(*commandsv1.WritePart) error {
			close(arrived)
			<-release
			return nil
		}
	})
	wrote := make(chan error, 1)
	go func() {
		_, err := c.WriteFile(t.Context(), &computev1.WriteFileRequest{SandboxId: box, Path: "f", Data: []byte("x")})
		wrote <- err
	}()
	<-arrived
	began := time.Now()
	stop()
	w.until(func() bool {
		other := computev1.NewComputeServiceClient(w.dial(a))
		_, err := other.DescribeSandbox(t.Context(), &computev1.DescribeSandboxRequest{SandboxId: box})
		return status.Code(err) == codes.Unavailable
	})
	close(release)
	require.NoError(t, <-wrote)
	r := drainStream(s)
	require.Error(t, r.failure)
	require.Nil(t, r.completed, "a stream that is cut is no completion")
	require.NoError(t, <-ended)
	require.Less(t, time.Since(began), 10*time.Second)
	x, err := w.GetExec(t.Context(), &computev1.GetExecRequest{ExecId: h.Get("sandtrail-exec-id")[0]})
	require.NoError(t, err)
	require.Equal(t, "running", x.GetState())
}

func TestOpsEndpoints(t *testing.T) {
	w := newWorld(t, nil)
	get := func(path string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+w.app.HTTP()+path, nil)
		require.NoError(t, err)
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		res, err := client.Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		return res.StatusCode
	}
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		require.Equal(t, http.StatusOK, get(path), path)
	}
	w.Stop()
	w.until(func() bool { return get("/readyz") == http.StatusServiceUnavailable })
	require.Equal(t, http.StatusOK, get("/healthz"))
	w.Resume()
}

// Streams that are opened and cut leave no goroutine and no subscription behind.
func TestThousandStreamsLeaveNothing(t *testing.T) {
	w := newWorld(t, nil)
	mine := w.connect()
	_, conn := w.gateway(mine)
	c := computev1.NewComputeServiceClient(conn)
	box := w.create(t.Context())
	s, err := c.ExecCommand(t.Context(), &computev1.ExecCommandRequest{SandboxId: box, Command: "wait", Detach: true})
	require.NoError(t, err)
	h, err := s.Header()
	require.NoError(t, err)
	id := h.Get("sandtrail-exec-id")[0]
	batch := func(n int) {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				if i%2 == 0 {
					s, err := c.AttachExec(ctx, &computev1.AttachExecRequest{ExecId: id})
					if err == nil {
						_, err = s.Header()
					}
					if err != nil {
						t.Error(err)
					}
					return
				}
				s, err := c.WatchEvents(ctx, &computev1.WatchEventsRequest{TenantId: "acme"})
				if err == nil {
					_, err = s.Recv()
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		cancel()
	}
	subscriptions := mine.NumSubscriptions
	batch(20)
	var goroutines, subs int
	w.until(func() bool { // settled: the same twice
		g, n := runtime.NumGoroutine(), subscriptions()
		same := g == goroutines && n == subs
		goroutines, subs = g, n
		return same && n < 20
	})
	for range 5 {
		batch(200)
	}
	// One more: who records calls subscribes with the first record, and stays so.
	w.until(func() bool { return subscriptions() <= subs+1 })
	w.until(func() bool { return runtime.NumGoroutine() <= goroutines+20 })
}
