// Package bucket follows the entries of a key-value bucket through restarts of the server.
package bucket

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// maxPause bounds the wait between two attempts to begin a watch.
const maxPause = 2 * time.Second

// Watcher is told what happens in a bucket, from one goroutine.
type Watcher struct {
	// Put gets each entry that stands in the bucket when a watch begins (old is true) and each that is put later. Entries come
	// again when a watch is begun anew.
	Put func(e jetstream.KeyValueEntry, old bool)
	// Gone gets the key of each entry that is removed while a watch goes on; nil where that does not matter. One that is removed
	// between two watches is not told: it is missing among the old ones of the next.
	Gone func(key string)
	// Current says that everything that stood in the bucket was told and that what is put from now on comes.
	Current func()
	// Behind says that puts may be missed until Current is called again; nil where that does not matter.
	Behind func()
}

var errReconnected = errors.New("the connection was made anew")

// Follow tells w about a bucket until ctx ends. A watch that breaks is begun again within two seconds, and at once when the
// connection comes back: the consumer behind a watch does not outlive a server, and the client would notice by missed
// heartbeats only, after ten seconds.
func Follow(ctx context.Context, js jetstream.JetStream, name string, log *slog.Logger, w Watcher) {
	if w.Behind == nil {
		w.Behind = func() {}
	}
	if w.Gone == nil {
		w.Gone = func(string) {}
	}
	connected := js.Conn().StatusChanged(nats.CONNECTED)
	defer js.Conn().RemoveStatusListener(connected)
	failures := 0
	for {
		err := watch(ctx, js, name, connected, w, func() { failures = 0 })
		w.Behind()
		if ctx.Err() != nil {
			return
		}
		if !errors.Is(err, errReconnected) {
			log.Warn("the watch on a bucket broke", "bucket", name, "error", err)
		}
		failures++
		limit := min(maxPause, 50*time.Millisecond<<min(failures, 6))
		t := time.NewTimer(limit/2 + rand.N(limit/2)) //nolint:gosec // spreads load, guards nothing
		select {
		case <-t.C:
		case <-connected:
			t.Stop()
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

func watch(parent context.Context, js jetstream.JetStream, name string, connected <-chan nats.Status, w Watcher, works func()) error {
	// A request that was under way when the server went is never answered: a new connection ends it.
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-connected:
			cancel(errReconnected)
		case <-done:
		}
	}()
	kv, err := js.KeyValue(ctx, name)
	if err != nil {
		return cause(ctx, fmt.Errorf("open bucket %s: %w", name, err))
	}
	updates, err := kv.WatchAll(ctx)
	if err != nil {
		return cause(ctx, fmt.Errorf("watch bucket %s: %w", name, err))
	}
	defer func() { _ = updates.Stop() }()
	old := true
	for {
		select {
		case <-ctx.Done():
			return cause(ctx, ctx.Err())
		case e, open := <-updates.Updates():
			switch {
			case !open:
				return cause(ctx, errors.New("the watch has ended"))
			case e == nil:
				old = false
				works()
				w.Current()
			case e.Operation() == jetstream.KeyValuePut:
				w.Put(e, old)
			default:
				w.Gone(e.Key())
			}
		}
	}
}

// cause is why ctx ended, or err where it has not.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
