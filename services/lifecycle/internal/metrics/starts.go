package metrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// bounds of the time from request to ready, in seconds. A change needs another Version: stored counts are by these.
var bounds = []float64{0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 30, 60, 120, 300}

// other stands for a reason that is none of reasons, so that the label is bounded whatever an event says.
const other = "other"

// reasons are those that a sandbox is known to fail for.
var reasons = []string{
	string(fault.ReasonImageNotFound), string(fault.ReasonImagePullFailed), string(fault.ReasonImageInvalid),
	string(fault.ReasonRuntimeFailed), string(fault.ReasonStartDeadline), string(fault.ReasonSandboxLost),
	string(fault.ReasonToolboxUnavailable), string(fault.ReasonDiskFull), other,
}

const (
	// attempts bounds the races lost against another process of the same worker before the event is applied again.
	attempts = 10
	// fresh is how long counts are taken for the stored ones. Another process or another life of the log may change them; what
	// is stored by revision is safe in any case.
	fresh = time.Second
)

var (
	readySeconds = prometheus.NewDesc("sandtrail_sandbox_ready_seconds", "From the request of a sandbox of this worker to ready, by the log.", nil, nil)
	warmTotal    = prometheus.NewDesc("sandtrail_sandbox_warm_total", "Sandboxes of this worker that became ready by taking a warm one instead of a cold start, by the log; all are the count of sandtrail_sandbox_ready_seconds.", nil, nil)
	failedTotal  = prometheus.NewDesc("sandtrail_sandbox_failed_total", "Sandboxes of this worker that did not start or ended by themselves, by the log.", []string{"reason"}, nil)
)

// Starts is a projection and a collector: how long the sandboxes of one worker took from their request to their first ready, and
// how many failed. The counts stand in bucket checkpoint with the sequence of the last event in them, so that each event counts
// once over restarts, replays and processes.
type Starts struct {
	js     jetstream.JetStream
	kv     jetstream.KeyValue
	events eventlog.Log
	worker string

	// last is the sequence of the event applied last: one that is not behind it starts a replay.
	last uint64
	// revision of the bucket's entry; 0 where there is none.
	revision uint64
	// loaded is when counts were read from the bucket; zero asks for it again.
	loaded time.Time
	// counts are replaced, never changed: a scrape reads them without waiting for an event that waits for the server.
	counts atomic.Pointer[counts]
}

// counts are what is stored. They count only in the life of the log that Incarnation names.
type counts struct {
	Incarnation string `json:"incarnation"`
	// Seq is the last event that is in it.
	Seq uint64 `json:"seq"`
	// Ready counts by bounds, each without those below, and one more for what is over all.
	Ready   []uint64 `json:"ready"`
	Seconds float64  `json:"seconds"`
	// Warm are those of Ready that took a warm sandbox.
	Warm   uint64            `json:"warm,omitempty"`
	Failed map[string]uint64 `json:"failed"`
}

func (c *counts) clone() *counts {
	next := *c
	next.Ready, next.Failed = slices.Clone(c.Ready), maps.Clone(c.Failed)
	return &next
}

// NewStarts reads what is counted so far. It gives an error where the log or the bucket cannot be read.
func NewStarts(ctx context.Context, js jetstream.JetStream, events eventlog.Log, worker string) (*Starts, error) {
	kv, err := js.KeyValue(ctx, topology.BucketCheckpoint)
	if err != nil {
		return nil, fmt.Errorf("open checkpoints: %w", err)
	}
	s := &Starts{js: js, kv: kv, events: events, worker: worker}
	return s, s.load(ctx)
}

// Name of the projection: one for each worker.
func (s *Starts) Name() string { return topology.StartsName(s.worker) }

// Version of what the counts mean.
func (s *Starts) Version() int { return 1 }

// Subjects of the events it reads.
func (s *Starts) Subjects() []string { return []string{subject.AllSandboxes()} }

func (s *Starts) key() string { return fmt.Sprintf("%s-v%d.counts", s.Name(), s.Version()) }

// Apply counts the event unless it is counted already.
func (s *Starts) Apply(ctx context.Context, e envelope.Recorded) error {
	if e.Seq <= s.last || time.Since(s.loaded) > fresh {
		s.loaded = time.Time{}
	}
	s.last = e.Seq
	switch e.Body.(type) {
	case *eventsv1.SandboxReady, *eventsv1.SandboxFailed:
	default:
		return nil
	}
	if !s.loaded.IsZero() && e.Seq <= s.counts.Load().Seq {
		return nil
	}
	agg, err := subject.ParseEvent(e.Subject)
	if err != nil {
		return err
	}
	before, err := s.before(ctx, agg, e.Seq)
	if err != nil {
		return err
	}
	if b, ok := e.Body.(*eventsv1.SandboxReady); ok {
		if b.GetWorker() != s.worker || before.ready || before.requested.IsZero() {
			return nil
		}
		took := max(0, e.Time.Sub(before.requested).Seconds())
		return s.count(ctx, e.Seq, func(c *counts) {
			i, _ := slices.BinarySearch(bounds, took)
			c.Ready[i]++
			c.Seconds += took
			if b.GetWarm() {
				c.Warm++
			}
		})
	}
	if before.worker != s.worker {
		return nil
	}
	reason := e.Body.(*eventsv1.SandboxFailed).GetReason()
	if !slices.Contains(reasons, reason) {
		reason = other
	}
	return s.count(ctx, e.Seq, func(c *counts) { c.Failed[reason]++ })
}

// past is what a sandbox's history says before an event.
type past struct {
	requested time.Time
	worker    string
	ready     bool
}

func (s *Starts) before(ctx context.Context, agg subject.Aggregate, seq uint64) (past, error) {
	h, err := s.events.Load(ctx, agg)
	if err != nil {
		return past{}, err
	}
	var p past
	for _, e := range h.Events {
		if e.Seq >= seq {
			break
		}
		switch b := e.Body.(type) {
		case *eventsv1.SandboxRequested:
			p.requested, p.worker = e.Time, b.GetPlacement().GetWorker()
		case *eventsv1.SandboxScheduled:
			p.worker = b.GetPlacement().GetWorker()
		case *eventsv1.SandboxStarting:
			p.worker = b.GetWorker()
		case *eventsv1.SandboxReady:
			p.worker, p.ready = b.GetWorker(), true
		}
	}
	return p, nil
}

// count stores what change makes of the counts unless they have the event already.
func (s *Starts) count(ctx context.Context, seq uint64, change func(*counts)) error {
	var err error
	for range attempts {
		if s.loaded.IsZero() {
			if err := s.load(ctx); err != nil {
				return err
			}
		}
		if seq <= s.counts.Load().Seq {
			return nil
		}
		next := s.counts.Load().clone()
		next.Seq = seq
		change(next)
		data, failed := json.Marshal(next)
		if failed != nil {
			return fmt.Errorf("encode the counts of starts: %w", failed)
		}
		var revision uint64
		if s.revision == 0 {
			revision, err = s.kv.Create(ctx, s.key(), data)
		} else {
			revision, err = s.kv.Update(ctx, s.key(), data, s.revision)
		}
		if err == nil {
			s.revision = revision
			s.counts.Store(next)
			return nil
		}
		// Somebody else was faster, or this one is stored and its acknowledgement was lost: what is stored says which.
		s.loaded = time.Time{}
	}
	return fmt.Errorf("store the counts of starts: %w", err)
}

// load reads the stored counts.
func (s *Starts) load(ctx context.Context) error {
	stream, err := s.js.Stream(ctx, topology.StreamEvents)
	if err != nil {
		return fmt.Errorf("open stream of events: %w", err)
	}
	incarnation := stream.CachedInfo().Config.Metadata[topology.MetaIncarnation]
	c := &counts{}
	var revision uint64
	e, err := s.kv.Get(ctx, s.key())
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
	case err != nil:
		return fmt.Errorf("load the counts of starts: %w", err)
	default:
		revision = e.Revision()
		if json.Unmarshal(e.Value(), c) != nil || c.Incarnation != incarnation || len(c.Ready) != len(bounds)+1 {
			c = &counts{}
		}
	}
	if c.Ready == nil {
		c.Ready = make([]uint64, len(bounds)+1)
	}
	if c.Failed == nil {
		c.Failed = map[string]uint64{}
	}
	c.Incarnation = incarnation
	s.revision, s.loaded = revision, time.Now()
	s.counts.Store(c)
	return nil
}

// Describe implements prometheus.Collector.
func (s *Starts) Describe(to chan<- *prometheus.Desc) {
	to <- readySeconds
	to <- warmTotal
	to <- failedTotal
}

// Collect implements prometheus.Collector. It asks nobody.
func (s *Starts) Collect(to chan<- prometheus.Metric) {
	c := s.counts.Load()
	cumulative := make(map[float64]uint64, len(bounds))
	var n uint64
	for i, le := range bounds {
		n += c.Ready[i]
		cumulative[le] = n
	}
	n += c.Ready[len(bounds)]
	to <- prometheus.MustNewConstHistogram(readySeconds, n, c.Seconds, cumulative)
	to <- prometheus.MustNewConstMetric(warmTotal, prometheus.CounterValue, float64(c.Warm))
	for _, reason := range reasons {
		to <- prometheus.MustNewConstMetric(failedTotal, prometheus.CounterValue, float64(c.Failed[reason]), reason)
	}
}
