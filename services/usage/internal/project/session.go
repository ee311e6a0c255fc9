package project

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandtrail/sandtrail/libs/feed"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// idle is how long a read waits that has nothing to hand on.
const idle = time.Second

// session is one life of a feed.
type session struct {
	p    *Projector
	feed *feed.Feed
	// incarnation of the stream: sequences of another one are others.
	incarnation string
	// epoch of the rows, see checkpoint.
	epoch string
	// revision of the checkpoint that this session read or stored last; 0 where there is none.
	revision uint64
	// spare are batches to fill anew.
	spare chan *batch
}

// session projects from the checkpoint on until ctx ends, the feed does, or another projector was faster: errOvertaken. works is
// called whenever a batch is done.
func (p *Projector) session(ctx context.Context, works func()) error {
	s := &session{p: p, spare: make(chan *batch, 3)}
	at, err := s.resume(ctx)
	if err != nil {
		return err
	}
	// Of all subjects: those that make no row are few, and a filter costs the server more than they do.
	s.feed, err = feed.Open(ctx, p.js, feed.Options{Stream: topology.StreamEvents, From: at + 1, Window: window})
	if err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	defer s.feed.Close()
	reading, stop := context.WithCancel(ctx)
	defer stop()
	batches, written := make(chan *batch, 1), make(chan error, 1)
	go func() {
		// Where nothing can be written there is no use in reading.
		defer stop()
		written <- s.write(ctx, batches, works)
	}()
	err = s.read(reading, batches)
	close(batches)
	if e := <-written; e != nil {
		return e
	}
	return err
}

// read makes batches of events until ctx ends or the feed does. A batch goes on when it is full, or when it has lingered; while
// the step behind is busy it grows.
func (s *session) read(ctx context.Context, batches chan<- *batch) error {
	b, wait := s.empty(), idle
	for {
		m, ok, err := s.feed.Next(ctx, wait)
		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		if ok {
			if err := s.p.add(ctx, b, m); err != nil {
				return err
			}
			// The time matters only to the last event there is, and now and then.
			if m.Left > 0 && b.events%64 != 0 && !b.full() {
				continue
			}
		}
		if b.full() {
			select {
			case batches <- b:
			case <-ctx.Done():
				return ctx.Err()
			}
			b, wait = s.empty(), idle
			continue
		}
		if wait = b.lingers(time.Now()); wait > 0 {
			continue
		}
		select {
		case batches <- b:
			b, wait = s.empty(), idle
		default:
			wait = linger
		}
	}
}

// write inserts batches and stores the checkpoint behind each, until there are no more.
func (s *session) write(ctx context.Context, batches <-chan *batch, works func()) error {
	for b := range batches {
		if err := s.p.insert(ctx, b); err != nil {
			return err
		}
		if err := s.save(ctx, b); err != nil {
			return err
		}
		works()
		if !b.behind {
			// What a long log needed is not kept for a short one.
			continue
		}
		b.reset()
		select {
		case s.spare <- b:
		default:
		}
	}
	return nil
}

// save stores the checkpoint behind a batch. It tries again until it succeeds, another projector has stored one, or ctx ends.
func (s *session) save(ctx context.Context, b *batch) error {
	for attempt := 1; ; attempt++ {
		err := s.store(ctx, b.last, b.stored)
		if err == nil || errors.Is(err, errOvertaken) {
			return err
		}
		if ctx.Err() != nil || s.p.closed() {
			return err
		}
		s.p.metrics.retries.Inc()
		s.p.log.Warn("cannot store the checkpoint, trying again", "attempt", attempt, "error", err)
		backOff(ctx, attempt)
	}
}

// empty is a batch to fill.
func (s *session) empty() *batch {
	select {
	case b := <-s.spare:
		return b
	default:
		return &batch{}
	}
}
