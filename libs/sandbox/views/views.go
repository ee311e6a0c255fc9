// Package views follows the current views of sandboxes in KV bucket sandbox. They are behind the log by some milliseconds:
// good for finding what to look at, never for deciding.
package views

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
)

// Set holds the views that keep wants, by sandbox id. Its size is what keep lets in: there is no other bound.
type Set struct {
	keep func(*commandsv1.SandboxView) bool
	log  *slog.Logger

	mu    sync.Mutex
	views map[string]*commandsv1.SandboxView
	ready chan struct{}
	once  sync.Once
}

// Live keeps the sandboxes that are not destroyed.
func Live(v *commandsv1.SandboxView) bool { return v.GetState() != sandbox.Destroyed }

// New makes an empty set; Run fills it.
func New(log *slog.Logger, keep func(*commandsv1.SandboxView) bool) *Set {
	return &Set{keep: keep, log: log, views: map[string]*commandsv1.SandboxView{}, ready: make(chan struct{})}
}

// Run follows the bucket until ctx ends. A watch that breaks is begun again a second later; the set then keeps what it knew.
func (s *Set) Run(ctx context.Context, js jetstream.JetStream) error {
	for {
		err := s.watch(ctx, js)
		if ctx.Err() != nil {
			return nil
		}
		s.log.Warn("the watch on the sandboxes' views broke", "error", err)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *Set) watch(ctx context.Context, js jetstream.JetStream) error {
	kv, err := js.KeyValue(ctx, topology.BucketSandbox)
	if err != nil {
		return fmt.Errorf("open the bucket of sandboxes: %w", err)
	}
	w, err := kv.WatchAll(ctx)
	if err != nil {
		return fmt.Errorf("watch the bucket of sandboxes: %w", err)
	}
	defer func() { _ = w.Stop() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, open := <-w.Updates():
			switch {
			case !open:
				return fmt.Errorf("the watch has ended")
			case e == nil:
				s.once.Do(func() { close(s.ready) })
			case e.Operation() == jetstream.KeyValuePut:
				s.put(e.Key(), e.Value())
			}
		}
	}
}

func (s *Set) put(key string, value []byte) {
	v := &commandsv1.SandboxView{}
	if err := proto.Unmarshal(value, v); err != nil {
		s.log.Error("a view cannot be read; rebuild the views", "key", key, "error", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := v.GetSandboxId()
	if old, ok := s.views[id]; ok && old.GetSequence() > v.GetSequence() {
		return
	}
	if s.keep(v) {
		s.views[id] = v
	} else {
		delete(s.views, id)
	}
}

// Ready is closed once everything that stood in the bucket at the start is in the set.
func (s *Set) Ready() <-chan struct{} { return s.ready }

// Get returns a view, which is shared: read only.
func (s *Set) Get(id string) (*commandsv1.SandboxView, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.views[id]
	return v, ok
}

// All returns every view, in no order; they are shared: read only.
func (s *Set) All() []*commandsv1.SandboxView {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.views))
}
