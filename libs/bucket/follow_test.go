package bucket_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sandtrail/sandtrail/libs/bucket"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = 20 * time.Second
	tick     = 5 * time.Millisecond
)

// follower is what one watcher was told.
type follower struct {
	mu      sync.Mutex
	values  map[string]string
	old     map[string]bool
	current bool
	begun   int
}

func follow(t *testing.T, js jetstream.JetStream) (*follower, func()) {
	f := &follower{values: map[string]string{}, old: map[string]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		bucket.Follow(ctx, js, topology.BucketWorker, slog.New(slog.DiscardHandler), bucket.Watcher{
			Put: func(e jetstream.KeyValueEntry, old bool) {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.values[e.Key()], f.old[e.Key()] = string(e.Value()), old
			},
			Current: func() {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.current = true
				f.begun++
			},
			Behind: func() {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.current = false
			},
		})
	}()
	stop := sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return f, stop
}

func (f *follower) has(key, value string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.values[key] == value
}

func (f *follower) isCurrent(begun int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current && f.begun >= begun
}

func put(t *testing.T, js jetstream.JetStream, key, value string) {
	t.Helper()
	kv, err := js.KeyValue(t.Context(), topology.BucketWorker)
	require.NoError(t, err)
	_, err = kv.PutString(t.Context(), key, value)
	require.NoError(t, err)
}

func TestTellsWhatStandsAndWhatComes(t *testing.T) {
	n := natstest.Start(t)
	put(t, n.JS, "a", "1")
	f, stop := follow(t, n.JS)
	require.Eventually(t, func() bool { return f.isCurrent(1) }, patience, tick)
	require.True(t, f.has("a", "1"))
	put(t, n.JS, "b", "2")
	require.Eventually(t, func() bool { return f.has("b", "2") }, patience, tick)
	require.True(t, f.old["a"])
	require.False(t, f.old["b"])
	stop()
	require.False(t, f.isCurrent(1), "who no longer follows is behind")
}

// A watch's own consumer is gone with the server. Left to the client, this takes ten seconds to be noticed.
func TestGoesOnWhenTheServerIsBack(t *testing.T) {
	n := natstest.Start(t)
	f, _ := follow(t, n.JS)
	require.Eventually(t, func() bool { return f.isCurrent(1) }, patience, tick)
	for i, v := range []string{"1", "2", "3"} {
		n.Restart()
		back := time.Now()
		put(t, n.JS, "a", v)
		require.Eventually(t, func() bool { return f.has("a", v) && f.isCurrent(i+2) }, patience, tick)
		require.Less(t, time.Since(back), 8*time.Second)
	}
}

func TestBeginsDuringAnOutage(t *testing.T) {
	n := natstest.Start(t)
	n.Stop()
	f, _ := follow(t, n.JS)
	n.Resume()
	put(t, n.JS, "a", "1")
	require.Eventually(t, func() bool { return f.has("a", "1") && f.isCurrent(1) }, patience, tick)
}
