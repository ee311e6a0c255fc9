package views_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/sandbox/views"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
)

func TestASetIsWhatStandsInTheBucket(t *testing.T) {
	f := natstest.Start(t)
	kv, err := f.JS.KeyValue(t.Context(), topology.BucketSandbox)
	require.NoError(t, err)
	put := func(id, state string, seq uint64) {
		data, err := proto.Marshal(&commandsv1.SandboxView{TenantId: "acme", SandboxId: id, State: state, Sequence: seq})
		require.NoError(t, err)
		_, err = kv.Put(t.Context(), "acme."+id, data)
		require.NoError(t, err)
	}
	s := views.New(slog.New(slog.DiscardHandler), views.Live)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, f.JS) }()
	is := func(want map[string]uint64) {
		t.Helper()
		require.Eventually(t, func() bool {
			all := s.All()
			for _, v := range all {
				if want[v.GetSandboxId()] != v.GetSequence() {
					return false
				}
			}
			return len(all) == len(want)
		}, 20*time.Second, 10*time.Millisecond)
	}
	a, b, c := ids.New(), ids.New(), ids.New()
	put(a, sandbox.Ready, 10)
	put(b, sandbox.Ready, 11)
	put(c, sandbox.Ready, 12)
	is(map[string]uint64{a: 10, b: 11, c: 12})
	put(a, sandbox.Starting, 3) // as after a loss of what came behind
	require.NoError(t, kv.Delete(t.Context(), "acme."+b))
	put(c, sandbox.Destroyed, 13)
	is(map[string]uint64{a: 3})

	put(b, sandbox.Ready, 14)
	is(map[string]uint64{a: 3, b: 14})
	f.Lose(topology.StreamEvents, func() {}) // a restart, and another
	f.Lose("KV_"+topology.BucketSandbox, func() { put(c, sandbox.Ready, 20) })
	is(map[string]uint64{a: 3, b: 14})
	cancel()
	require.NoError(t, <-done)
}
