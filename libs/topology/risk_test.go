package topology_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

func TestReplicasAreNeverTakenAwayAndTheirLackIsTold(t *testing.T) {
	one := natstest.Start(t)
	risks, err := topology.Risks(t.Context(), one.JS)
	require.NoError(t, err)
	require.Empty(t, risks, "a server by itself can keep one copy only")

	f := natstest.Cluster(t)
	risks, err = topology.Risks(t.Context(), f.JS)
	require.NoError(t, err)
	require.Empty(t, risks)
	// A service that was started without its flag.
	require.NoError(t, topology.Ensure(t.Context(), f.JS, topology.Options{Replicas: 1}))
	differences, err := topology.Diff(t.Context(), f.JS, topology.Options{Replicas: 1})
	require.NoError(t, err)
	require.Empty(t, differences)
	for _, name := range []string{topology.StreamEvents, subject.BucketStream(topology.BucketName)} {
		s, err := f.JS.Stream(t.Context(), name)
		require.NoError(t, err)
		config := s.CachedInfo().Config
		require.Equal(t, 3, config.Replicas, name)
		config.Replicas = 1
		_, err = f.JS.UpdateStream(t.Context(), config)
		require.NoError(t, err)
	}
	risks, err = topology.Risks(t.Context(), f.JS)
	require.NoError(t, err)
	require.Len(t, risks, 1)
	require.Contains(t, risks[0], "EVT, bucket name stand on one server of cluster test each")
}
