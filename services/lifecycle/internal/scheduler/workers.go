package scheduler

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/bucket"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
)

// freshness is how old a heartbeat may be for its worker to be given sandboxes.
const freshness = 15 * time.Second

// Workers follows the heartbeats of workers. Their number is the number of hosts: not bounded here.
type Workers struct {
	now func() time.Time
	log *slog.Logger

	mu      sync.Mutex
	seen    map[string]beat
	changed chan struct{}
	// current is since when no heartbeat was missed, by the system's clock; zero while some may be.
	current time.Time
}

type beat struct {
	status *commandsv1.WorkerStatus
	// at is when it arrived here, so that clocks of other hosts do not matter.
	at time.Time
}

// NewWorkers knows no worker; Run fills it.
func NewWorkers(log *slog.Logger, now func() time.Time) *Workers {
	return &Workers{now: now, log: log, seen: map[string]beat{}, changed: make(chan struct{})}
}

// Run follows the bucket until ctx ends.
func (w *Workers) Run(ctx context.Context, js jetstream.JetStream) error {
	bucket.Follow(ctx, js, topology.BucketWorker, w.log, bucket.Watcher{
		Put: func(e jetstream.KeyValueEntry, old bool) {
			at := w.now()
			if old && e.Created().Before(at) {
				at = e.Created()
			}
			w.put(e.Key(), e.Value(), at)
		},
		Current: func() { w.setCurrent(time.Now()) },
		Behind:  func() { w.setCurrent(time.Time{}) },
	})
	return nil
}

func (w *Workers) setCurrent(since time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.current = since
}

// Listening is how long every heartbeat has been heard without a gap; 0 while some may be missed.
func (w *Workers) Listening() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current.IsZero() {
		return 0
	}
	return time.Since(w.current)
}

func (w *Workers) put(key string, value []byte, at time.Time) {
	s := &commandsv1.WorkerStatus{}
	if err := proto.Unmarshal(value, s); err != nil || s.GetWorker() != key {
		w.log.Error("a heartbeat cannot be read", "key", key, "error", err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[key] = beat{status: s, at: at}
	close(w.changed)
	w.changed = make(chan struct{})
}

// Fresh lists the workers that were heard of lately, by name, and a channel that is closed at the next heartbeat.
func (w *Workers) Fresh() ([]*commandsv1.WorkerStatus, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []*commandsv1.WorkerStatus
	for _, b := range w.seen {
		if w.now().Sub(b.at) < freshness {
			out = append(out, b.status)
		}
	}
	slices.SortFunc(out, func(a, b *commandsv1.WorkerStatus) int { return strings.Compare(a.GetWorker(), b.GetWorker()) })
	return out, w.changed
}

// Alive reports whether a worker was heard of within d.
func (w *Workers) Alive(worker string, d time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	b, ok := w.seen[worker]
	return ok && w.now().Sub(b.at) < d
}
