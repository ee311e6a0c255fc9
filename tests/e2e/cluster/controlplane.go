package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/cluster/binaries"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/process"
)

// start bounds each wait of a bring-up: minutes only where the machine is taken by others.
const startDeadline = 5 * time.Minute

// ControlPlane starts etcd and an API server for a test, on free ports of 127.0.0.1, and ends them with it. It needs no root. There are watches,
// conflicts, server-side apply, RBAC, admission and quotas; there is no controller and no node: pods stay pending, owners take nothing with
// them, a namespace that is deleted stays terminating, and no namespace gets a service account of its own. The first call on a host builds
// Kubernetes: about 15 minutes of CPU.
func ControlPlane(t testing.TB, flags ...string) *Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: a real API server")
	}
	// t.TempDir is removed while etcd still writes.
	dir, err := os.MkdirTemp("", "st-control-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	c, stop, err := StartControlPlane(context.Background(), dir, binaries.Builder{Progress: progress(t)}, flags...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, stop()) })
	return c
}

// progress tells a test's log when a program was built, which a warm cache leaves out.
func progress(t testing.TB) binaries.Progress {
	return func(what string, done, total int, note string) {
		if done == 0 || done == total {
			t.Logf("%s: %s", what, note)
		}
	}
}

// StartControlPlane is ControlPlane for those who have no test: TestMain, a command. flags are more flags of the API server. stop ends it;
// dir stays. Without stop it ends with this process.
func StartControlPlane(ctx context.Context, dir string, b binaries.Builder, flags ...string) (c *Cluster, stop func() error, err error) {
	kube, err := b.Kube(ctx)
	if err != nil {
		return nil, nil, err
	}
	set := process.NewSet()
	stop = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return set.Stop(ctx)
	}
	// A port that is free now may be taken before it is bound: another three are tried once.
	for attempt := 0; ; attempt++ {
		c, err = startControlPlane(ctx, dir, kube, set, flags)
		if err == nil {
			return c, stop, nil
		}
		err = errors.Join(err, stop())
		if attempt > 0 || ctx.Err() != nil {
			return nil, nil, err
		}
	}
}

func startControlPlane(ctx context.Context, dir, kube string, set *process.Set, flags []string) (*Cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	if err := os.MkdirAll(filepath.Join(dir, "logs"), 0o755); err != nil {
		return nil, err
	}
	authority, err := certificates(dir, "none")
	if err != nil {
		return nil, err
	}
	p := place{dir: dir, kube: kube, bind: "127.0.0.1", advertise: "127.0.0.1", services: "10.96.0.0/24", authority: authority}
	if err := freePorts(&p.etcd, &p.etcdPeer, &p.apiserver); err != nil {
		return nil, err
	}
	c := &Cluster{Dir: dir, Server: fmt.Sprintf("https://127.0.0.1:%d", p.apiserver), HostAddress: "127.0.0.1", authority: authority, processes: set}
	if err := c.connect(); err != nil {
		return nil, err
	}
	if err := authority.WriteKubeconfig(adminUser, c.Server, adminUser, adminGroup); err != nil {
		return nil, err
	}
	if err := set.Start(ctx, p.etcdSpec()); err != nil {
		return nil, err
	}
	// Nobody makes service accounts here, and nobody may be published as the `kubernetes` service on a loopback address.
	alone := append([]string{"--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none"}, flags...)
	if err := set.Start(ctx, p.apiserverSpec(alone...)); err != nil {
		return nil, err
	}
	return c, c.Ready(ctx)
}

// freePorts holds all of them before it gives any back, so that they differ.
func freePorts(ports ...*int) error {
	for _, port := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer l.Close()
		*port = l.Addr().(*net.TCPAddr).Port
	}
	return nil
}
