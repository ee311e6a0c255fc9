package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/feed"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// Log is the log on a server, up to where it went when it was opened.
type Log struct {
	js jetstream.JetStream
	// ID is its incarnation.
	ID string
	// LastSeq is its last sequence.
	LastSeq uint64
}

// OpenLog asks the server for the log. It gives fault.Unavailable where it cannot be reached.
func OpenLog(ctx context.Context, js jetstream.JetStream) (Log, error) {
	s, err := js.Stream(ctx, topology.StreamEvents)
	if err != nil {
		return Log{}, unavailable(err)
	}
	info := s.CachedInfo()
	return Log{js: js, ID: info.Config.Metadata[topology.MetaIncarnation], LastSeq: info.State.LastSeq}, nil
}

func unavailable(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "the log cannot be read").Because(err)
}

const (
	logWindow = 8 << 20
	logBatch  = 512
	// patience is how long nothing may come although the log says that there is more: a message that is gone leaves nothing to wait for.
	patience = 2 * time.Second
	// attempts is how often a feed that broke is opened again without anything having come of it.
	attempts = 8
)

// Open gives its events from a sequence on, up to LastSeq. It is an Opener.
func (l Log) Open(ctx context.Context, from uint64, subjects ...string) (Source, error) {
	s := &logSource{log: l, next: max(from, 1), subjects: subjects}
	if l.LastSeq < s.next {
		return s, nil
	}
	return s, s.open(ctx)
}

type logSource struct {
	log      Log
	subjects []string
	feed     *feed.Feed
	// next is the sequence to go on from.
	next   uint64
	failed int
	ended  bool
}

func (s *logSource) open(ctx context.Context) (err error) {
	s.feed, err = feed.Open(ctx, s.log.js, feed.Options{Stream: topology.StreamEvents, Subjects: s.subjects, From: s.next, Window: logWindow})
	if err != nil {
		return unavailable(err)
	}
	return nil
}

func (s *logSource) Close() {
	if s.feed != nil {
		s.feed.Close()
		s.feed = nil
	}
}

func (s *logSource) Next(ctx context.Context) ([]Entry, error) {
	if s.next > s.log.LastSeq || s.ended {
		return nil, io.EOF
	}
	all := make([]Entry, 0, logBatch)
	for len(all) < logBatch && s.next <= s.log.LastSeq && !s.ended {
		m, ok, err := s.take(ctx)
		switch {
		case err != nil:
			return nil, err
		case !ok:
			if err := s.quiet(ctx); err != nil {
				return nil, err
			}
			continue
		case m.Seq > s.log.LastSeq:
			s.ended = true
			continue
		}
		s.next, s.failed = m.Seq+1, 0
		s.ended = m.Left == 0
		all = append(all, Entry{Subject: m.Subject, Seq: m.Seq, Stored: m.Stored, Headers: m.Block(), Data: m.Data})
	}
	if len(all) == 0 {
		return nil, io.EOF
	}
	return all, nil
}

// take gives the next message; a feed that broke is opened anew behind the last one.
func (s *logSource) take(ctx context.Context) (feed.Message, bool, error) {
	for {
		m, ok, err := s.feed.Next(ctx, patience)
		if err == nil {
			return m, ok, nil
		}
		if s.failed++; ctx.Err() != nil || (!errors.Is(err, feed.ErrGap) && !errors.Is(err, feed.ErrEnded)) || s.failed > attempts {
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return m, false, unavailable(fmt.Errorf("behind event %d: %w", s.next-1, err))
		}
		s.Close()
		if err := s.open(ctx); err != nil {
			return m, false, err
		}
	}
}

// quiet asks the server whether anything is left where nothing has come.
func (s *logSource) quiet(ctx context.Context) error {
	left, last, err := s.feed.Left(ctx)
	if err != nil {
		return unavailable(err)
	}
	if left == 0 && last < s.next {
		s.ended = true
		return nil
	}
	if s.failed++; s.failed > 10*attempts {
		return unavailable(fmt.Errorf("%d messages behind event %d do not come", left, s.next-1))
	}
	return nil
}
