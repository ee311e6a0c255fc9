package system_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	usage "github.com/sandtrail/sandtrail/services/usage/app"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/binaries"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/system"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

const (
	// tenant is the one that the quickstart names.
	tenant = "acme-tenant-uuid"
	// imagesVariable names a directory of images that are there already.
	imagesVariable = "SANDTRAIL_IMAGES"
)

func TestMain(m *testing.M) {
	if usage.IsEngine() {
		os.Exit(usage.EngineMain())
	}
	code := m.Run()
	if err := leave(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// world is Sandtrail on a cluster, and the calls to it.
type world struct {
	stack.Stack
	cluster *cluster.Cluster
	install *system.Installation
}

// shared is made by whoever needs it first: a test, or a benchmark. down ends what was begun, the last first.
var shared struct {
	sync.Once
	world *world
	err   error
	down  []func() error
}

func leave() (failed error) {
	for i := len(shared.down) - 1; i >= 0; i-- {
		failed = errors.Join(failed, shared.down[i]())
	}
	return failed
}

// installed is the one installation of this process.
func installed(t testing.TB) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: a real Kubernetes node and the whole system on it")
	}
	shared.Do(func() { shared.world, shared.err = bringUp(stack.Root(t), t.Logf) })
	require.NoError(t, shared.err)
	return shared.world
}

// later has f called when everything is over.
func later(f func() error) { shared.down = append(shared.down, f) }

func bringUp(source string, progress func(string, ...any)) (*world, error) {
	ctx, stop := context.WithCancel(context.Background())
	later(func() error { stop(); return nil })
	w := &world{}
	var err error
	if w.cluster, err = startNode(ctx); err != nil {
		return nil, err
	}
	address, err := w.clickHouse(ctx)
	if err != nil {
		return nil, fmt.Errorf("ClickHouse: %w", err)
	}
	if os.Getenv(cluster.KeptVariable) != "" {
		// One's own node takes everything with it.
		later(func() error { return w.clear() })
	}
	w.install, err = system.Install(ctx, w.cluster, system.Options{
		Source: source, Images: os.Getenv(imagesVariable), Tenant: tenant, ClickHouse: address, Progress: progress,
	})
	if err != nil {
		return nil, err
	}
	return w, w.connect()
}

// clear leaves a node as it was found.
func (w *world) clear() error {
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	if w.install == nil {
		return nil
	}
	return errors.Join(w.install.Uninstall(ctx), w.install.Remove(ctx))
}

// startNode takes the node of SANDTRAIL_CLUSTER, or makes one that ends with this process.
func startNode(ctx context.Context) (*cluster.Cluster, error) {
	if dir := os.Getenv(cluster.KeptVariable); dir != "" {
		return cluster.Attach(ctx, dir)
	}
	dir, err := os.MkdirTemp("", "st-system-")
	if err != nil {
		return nil, err
	}
	later(func() error { return os.RemoveAll(dir) })
	c, err := cluster.StartNode(ctx, dir, binaries.Builder{}, false)
	if err != nil {
		return nil, err
	}
	later(func() error { return c.Down(context.Background()) })
	return c, nil
}

// clickHouse starts the built-in engine on this host and gives its address as pods reach it.
func (w *world) clickHouse(ctx context.Context) (string, error) {
	dir, err := os.MkdirTemp("", "st-clickhouse-")
	if err != nil {
		return "", err
	}
	later(func() error { return os.RemoveAll(dir) })
	e, err := usage.StartEngine(ctx, filepath.Join(dir, "data"), slog.New(slog.DiscardHandler))
	if err != nil {
		return "", err
	}
	later(func() error { e.Close(); return nil })
	address, err := url.Parse(e.URL())
	if err != nil {
		return "", err
	}
	// The chart's network policies know the usual port only.
	host, err := system.Relay(ctx, net.JoinHostPort(w.cluster.HostAddress, "9000"), address.Host)
	if err != nil {
		return "", err
	}
	w.ClickHouse = e.HTTP()
	address.Host = host
	return address.String(), nil
}

func (w *world) connect() error {
	w.GRPC, w.Key = w.install.GRPC, w.install.Key
	conn, err := grpc.NewClient(w.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(key(w.Key)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(20<<20), grpc.WaitForReady(true)))
	if err != nil {
		return err
	}
	later(conn.Close)
	w.API = computev1.NewComputeServiceClient(conn)
	return nil
}

// key is put on every call.
type key string

func (k key) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "ApiKey " + string(k)}, nil
}

func (key) RequireTransportSecurity() bool { return false }

// own makes a request the tenant's.
func own(r *computev1.CreateSandboxRequest) { r.TenantId = tenant }
