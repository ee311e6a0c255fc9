package cluster_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/cluster"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/binaries"
)

// shared is one node for the tests that leave it as they found it.
var shared struct {
	sync.Once
	dir     string
	cluster *cluster.Cluster
	err     error
}

func sharedNode(t *testing.T) *cluster.Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: a real Kubernetes node")
	}
	shared.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "st-shared-"); shared.err == nil {
			shared.cluster, shared.err = cluster.StartNode(context.Background(), shared.dir, binaries.Builder{}, false)
		}
	})
	require.NoError(t, shared.err)
	return shared.cluster
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.cluster != nil {
		if err := shared.cluster.Down(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "end the node:", err)
			code = 1
		}
	}
	if shared.dir != "" {
		if err := os.RemoveAll(shared.dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
