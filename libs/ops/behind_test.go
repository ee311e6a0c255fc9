package ops

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

func TestReplicasThatAreBehind(t *testing.T) {
	good := &jetstream.PeerInfo{Name: "a", Current: true}
	require.Zero(t, behind(nil), "a single server")
	require.Zero(t, behind(&jetstream.ClusterInfo{Leader: "l", Replicas: []*jetstream.PeerInfo{good, good}}))
	require.Equal(t, 1, behind(&jetstream.ClusterInfo{Leader: "l", Replicas: []*jetstream.PeerInfo{good, {Name: "b"}}}))
	require.Equal(t, 1, behind(&jetstream.ClusterInfo{Leader: "l", Replicas: []*jetstream.PeerInfo{good, {Name: "b", Current: true, Offline: true}}}))
	require.Equal(t, 2, behind(&jetstream.ClusterInfo{Replicas: []*jetstream.PeerInfo{good, {Name: "b", Offline: true}}}))
}
