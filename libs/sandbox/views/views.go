// Package views follows the current views of sandboxes in KV bucket sandbox. They are behind the log by some milliseconds:
// good for finding what to look at, never for deciding.
package views

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/bucket"
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

// Run follows the bucket until ctx ends. While a watch is broken the set keeps what it knew. What stands in the bucket counts, also
// where it is older than what stood there before: a log that lost events takes its views back.
func (s *Set) Run(ctx context.Context, js jetstream.JetStream) error {
	told := map[string]bool{}
	bucket.Follow(ctx, js, topology.BucketSandbox, s.log, bucket.Watcher{
		Put: func(e jetstream.KeyValueEntry, old bool) {
			if old {
				told[sandboxOf(e.Key())] = true
			}
			s.put(e.Key(), e.Value())
		},
		Gone: func(key string) { s.drop(func(id string) bool { return id == sandboxOf(key) }) },
		Current: func() {
			s.drop(func(id string) bool { return !told[id] })
			told = map[string]bool{}
			s.once.Do(func() { close(s.ready) })
		},
		Behind: func() { told = map[string]bool{} },
	})
	return nil
}

// sandboxOf is the id in a key, which is <tenant>.<sandbox>.
func sandboxOf(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }

func (s *Set) drop(gone func(id string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.views {
		if gone(id) {
			delete(s.views, id)
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
