package figure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/tests/bench/report"
	"github.com/sandtrail/sandtrail/tests/bench/sample"
)

// appends compares appends to the log with publishes of the same messages to the same stream.
func appends(ctx context.Context, b *Bench) (rows []report.Row, err error) {
	s, err := startServer(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	log := jslog.New(s.js)
	for _, at := range []struct{ writers, each int }{{1, b.count(1000)}, {64, b.count(60)}} {
		b.say("log: appends by %d at once", at.writers)
		var ours, theirs sample.Values
		for range b.Runs + 1 {
			rate, err := appendRate(ctx, log, at.writers, at.each)
			if err != nil {
				return nil, err
			}
			ours.Add(rate)
			if rate, err = publishRate(ctx, s, at.writers, at.each); err != nil {
				return nil, err
			}
			theirs.Add(rate)
		}
		ours, theirs = ours[1:], theirs[1:]
		rows = append(rows, report.Row{
			Name: fmt.Sprintf("log: appends by %d at once", at.writers), Unit: "events/s", Ours: ours.Median(), Baseline: theirs.Median(),
			Against: "nats.go publishing the same messages, each acknowledged", Samples: len(ours), Target: report.RatioAtLeast(0.7),
			Note: fmt.Sprintf("Three events to each aggregate, %d events a sample. Ours encodes the event, chains its digest, guards it by the expected sequence and decodes what was recorded; the baseline's messages are encoded before.", at.writers*at.each),
		})
	}
	return rows, nil
}

// perAggregate is how many events an exec has, with one for the cancellation.
const perAggregate = 3

func appendRate(ctx context.Context, log *jslog.Log, writers, each int) (float64, error) {
	events := make([][]envelope.Event, writers)
	for w := range events {
		for range each {
			events[w] = append(events[w], completed())
		}
	}
	return rate(writers*each, writers, func(w int) error {
		var agg subject.Aggregate
		var tail eventlog.Tail
		for i, e := range events[w] {
			if i%perAggregate == 0 {
				agg, tail = newExec(), eventlog.Tail{}
			}
			recorded, err := log.Append(ctx, agg, tail, e)
			if err != nil {
				return err
			}
			tail = eventlog.Tail{Seq: recorded[0].Seq, Digest: recorded[0].Digest}
		}
		return nil
	})
}

func publishRate(ctx context.Context, s *server, writers, each int) (float64, error) {
	messages := make([][]*nats.Msg, writers)
	for w := range messages {
		var agg subject.Aggregate
		for i := range each {
			if i%perAggregate == 0 {
				agg = newExec()
			}
			m, err := encoded(agg, completed())
			if err != nil {
				return 0, err
			}
			messages[w] = append(messages[w], m)
		}
	}
	return rate(writers*each, writers, func(w int) error {
		for _, m := range messages[w] {
			if _, err := s.js.PublishMsg(ctx, m); err != nil {
				return err
			}
		}
		return nil
	})
}

// rate is total per second of so many goroutines.
func rate(total, goroutines int, run func(int) error) (float64, error) {
	var g errgroup.Group
	begin := time.Now()
	for i := range goroutines {
		g.Go(func() error { return run(i) })
	}
	err := g.Wait()
	return float64(total) / time.Since(begin).Seconds(), err
}
