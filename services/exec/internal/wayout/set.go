// Package wayout is the way out of sandboxes: what their programs ask of a proxy at their loopback address is carried here by their toolbox, judged,
// and dialled from this host. A sandbox has no other network, so there is nothing to close: what is not carried here does not exist for it.
package wayout

import (
	"context"
	"log/slog"
	"strings"
	"sync"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/bucket"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/toolbox/client"
)

// most connections are served at once on the worker; further ones are refused as busy.
const most = 1024

// Config is what a Set works with.
type Config struct {
	Worker  string
	JS      jetstream.JetStream
	Events  eventlog.Log
	Toolbox func(sandbox string) *client.Client
	Dialer  *Dialer
	Log     *slog.Logger
	// Registerer takes the metrics; nil: nobody.
	Registerer prometheus.Registerer
}

// Set are the ways out of the sandboxes of one worker that run and may connect to somewhere, as their views tell it.
type Set struct {
	Config
	metrics *metrics
	places  chan struct{}

	ctx  context.Context
	work sync.WaitGroup

	mu       sync.Mutex
	sessions map[string]*session
}

// New makes a set that serves nobody yet.
func New(c Config) *Set {
	return &Set{Config: c, metrics: newMetrics(c.Registerer), places: make(chan struct{}, most), sessions: map[string]*session{}}
}

// Run follows the views until ctx ends, and ends every connection then.
func (s *Set) Run(ctx context.Context) error {
	s.ctx = ctx
	told := map[string]bool{}
	bucket.Follow(ctx, s.JS, topology.BucketSandbox, s.Log, bucket.Watcher{
		Put: func(e jetstream.KeyValueEntry, old bool) {
			if old {
				told[sandboxOf(e.Key())] = true
			}
			v := &commandsv1.SandboxView{}
			if err := proto.Unmarshal(e.Value(), v); err != nil {
				s.Log.Error("a view cannot be read; rebuild the views", "key", e.Key(), "error", err)
				v = &commandsv1.SandboxView{SandboxId: sandboxOf(e.Key())}
			}
			s.put(v)
		},
		Gone: func(key string) { s.drop(func(id string) bool { return id == sandboxOf(key) }) },
		Current: func() {
			s.drop(func(id string) bool { return !told[id] })
			told = map[string]bool{}
		},
		Behind: func() { told = map[string]bool{} },
	})
	s.work.Wait()
	return ctx.Err()
}

// sandboxOf is the id in a key, which is <tenant>.<sandbox>.
func sandboxOf(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }

// put starts, changes or ends the way out of a sandbox.
func (s *Set) put(v *commandsv1.SandboxView) {
	id, rules := v.GetSandboxId(), v.GetRequested().GetEgress()
	if v.GetWorker() != s.Worker || v.GetState() != sandbox.Ready || rules == nil {
		s.drop(func(other string) bool { return other == id })
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.sessions[id]; x != nil {
		x.allow(rules)
		return
	}
	ctx, stop := context.WithCancel(s.ctx)
	x := &session{
		set: s, id: id, stop: stop, flows: map[*flow]struct{}{}, records: newRecorder(s.Events, subject.Egress(v.GetTenantId(), id), s.Worker, s.Log),
	}
	x.allow(rules)
	s.sessions[id] = x
	s.work.Go(func() { x.run(ctx) })
}

func (s *Set) drop(gone func(id string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, x := range s.sessions {
		if gone(id) {
			x.stop()
			delete(s.sessions, id)
		}
	}
}

// enter takes a place for a connection. False: there is none.
func (s *Set) enter() bool {
	select {
	case s.places <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s *Set) leave() { <-s.places }

// Open reports whether a sandbox has a way out, as far as the views tell.
func (s *Set) Open(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[id] != nil
}
