package natstest_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sandtrail/sandtrail/libs/natstest"
)

// Every goroutine of a server, a cluster and their connections ends with its test, so that the tests of others may use goleak.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRestartKeepsConnectionsAndURL(t *testing.T) {
	f := natstest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	other, err := nats.Connect(f.URL, nats.ReconnectWait(10*time.Millisecond), nats.MaxReconnects(-1))
	require.NoError(t, err)
	t.Cleanup(other.Close)
	sub, err := other.SubscribeSync("live.>")
	require.NoError(t, err)
	require.NoError(t, other.Flush())

	f.Restart()
	require.Eventually(t, func() bool { return other.IsConnected() && other.Flush() == nil }, 10*time.Second, 10*time.Millisecond)
	_, err = f.JS.Publish(ctx, "evt.acme.tenant", []byte("x"))
	require.NoError(t, err)
	_, err = sub.NextMsgWithContext(ctx)
	require.NoError(t, err, "subscriptions are restored")
}

func TestClusterRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: a cluster of three servers")
	}
	f := natstest.Cluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a, err := f.JS.Publish(ctx, "evt.acme.tenant", []byte("kept"))
	require.NoError(t, err)
	f.Restart()
	s, err := f.JS.Stream(ctx, "EVT")
	require.NoError(t, err)
	require.Equal(t, 3, s.CachedInfo().Config.Replicas)
	m, err := s.GetMsg(ctx, a.Sequence)
	require.NoError(t, err)
	require.Equal(t, "kept", string(m.Data))
}
