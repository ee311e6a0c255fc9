package figure

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/projection"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/tests/bench/report"
	"github.com/sandtrail/sandtrail/tests/bench/sample"
)

const (
	replayEvents = 30_000
	// historyEvents is an aggregate of which the whole history is loaded.
	historyEvents = 20
	fillPatience  = time.Minute
)

// replay compares reading the log through a projection and by Load with raw ordered consumers of the same stream.
func replay(ctx context.Context, b *Bench) (rows []report.Row, err error) {
	s, err := startServer(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	n := b.count(replayEvents)
	b.say("replay: %d events", n)
	if err := s.fill(n, func(int) (subject.Aggregate, envelope.Event) { return newExec(), completed() }); err != nil {
		return nil, err
	}
	var ours, theirs sample.Values
	for i := range b.Runs + 1 {
		took, err := project(ctx, s, i, n)
		if err != nil {
			return nil, fmt.Errorf("projection: %w", err)
		}
		ours.Add(float64(n) / took.Seconds())
		if took, err = consume(ctx, s, subject.AllExecs(), n); err != nil {
			return nil, fmt.Errorf("ordered consumer: %w", err)
		}
		theirs.Add(float64(n) / took.Seconds())
	}
	load, raw, err := histories(ctx, b, s)
	if err != nil {
		return nil, err
	}
	return []report.Row{
		{
			Name: "log: events replayed through a projection", Unit: "events/s", Ours: ours[1:].Median(), Baseline: theirs[1:].Median(), Against: "nats.go ordered consumer of the same stream, nothing decoded", Samples: len(ours) - 1,
			Target: report.RatioAtLeast(0.7), Note: fmt.Sprintf("%d events a sample, the start of the consumer included. The projection decodes envelope and body, keeps its checkpoint and counts; the baseline reads ahead 8 MiB.", n),
		},
		{
			Name: fmt.Sprintf("log: load the history of one aggregate, %d events", historyEvents), Unit: "ms", Ours: load.Median(), Baseline: raw.Median(), Against: "nats.go ordered consumer of the same subject", Samples: len(load),
			Note: "Load verifies the digest chain and decodes every event.",
		},
	}, nil
}

// fill publishes n events as fast as it goes.
func (s *server) fill(n int, event func(i int) (subject.Aggregate, envelope.Event)) error {
	for i := range n {
		m, err := encoded(event(i))
		if err != nil {
			return err
		}
		// On a busy machine the server may take longer than the client waits by itself.
		if _, err := s.js.PublishMsgAsync(m, jetstream.WithStallWait(fillPatience)); err != nil {
			return err
		}
	}
	select {
	case <-s.js.PublishAsyncComplete():
		return nil
	case <-time.After(fillPatience):
		return errors.New("publishes are not acknowledged")
	}
}

// counting is a view of nothing but a number.
type counting struct {
	name string
	seen atomic.Int64
}

func (c *counting) Name() string       { return c.name }
func (c *counting) Version() int       { return 1 }
func (c *counting) Subjects() []string { return []string{subject.AllExecs()} }
func (c *counting) Apply(context.Context, envelope.Recorded) error {
	c.seen.Add(1)
	return nil
}

// project is the time until a fresh projection has every event.
func project(ctx context.Context, s *server, i, n int) (time.Duration, error) {
	c := &counting{name: fmt.Sprintf("bench-%d", i)}
	r := projection.New(s.js, c, projection.Options{})
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	begin := time.Now()
	go func() { ended <- r.Run(ctx) }()
	err := r.WaitFor(ctx, uint64(n))
	took := time.Since(begin)
	cancel()
	if err = errors.Join(err, <-ended); err == nil && c.seen.Load() != int64(n) {
		err = fmt.Errorf("%d events of %d", c.seen.Load(), n)
	}
	return took, err
}

// consume is the time until an ordered consumer has delivered n messages.
func consume(ctx context.Context, s *server, filter string, n int) (time.Duration, error) {
	begin := time.Now()
	c, err := s.js.OrderedConsumer(ctx, topology.StreamEvents, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{filter}, DeliverPolicy: jetstream.DeliverAllPolicy,
	})
	if err != nil {
		return 0, err
	}
	messages, err := c.Messages(jetstream.PullMaxBytes(8 << 20))
	if err != nil {
		return 0, err
	}
	defer messages.Stop()
	for range n {
		if _, err := messages.Next(jetstream.NextContext(ctx)); err != nil {
			return 0, err
		}
	}
	return time.Since(begin), nil
}

// histories loads one aggregate's history by both ways in turn, in ms.
func histories(ctx context.Context, b *Bench, s *server) (ours, theirs sample.Values, err error) {
	log, agg := jslog.New(s.js), newExec()
	for range historyEvents {
		h, err := log.Load(ctx, agg)
		if err != nil {
			return nil, nil, err
		}
		if _, err := log.Append(ctx, agg, h.Tail(), completed()); err != nil {
			return nil, nil, err
		}
	}
	for range b.Runs {
		begin := time.Now()
		h, err := log.Load(ctx, agg)
		if err != nil {
			return nil, nil, err
		}
		ours.Took(begin)
		if len(h.Events) != historyEvents {
			return nil, nil, fmt.Errorf("%d events of %d", len(h.Events), historyEvents)
		}
		took, err := consume(ctx, s, agg.Subject(), historyEvents)
		if err != nil {
			return nil, nil, err
		}
		theirs.Add(float64(took.Microseconds()) / 1000)
	}
	return ours, theirs, nil
}
