package usecase

import (
	"context"
	"sync"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// seenMost bounds the aggregates of which it is remembered how far they were seen. Over it all are forgotten: until they are seen again a
// replica that lags may show an older state of them, never their absence.
const seenMost = 16384

// seen remembers how far aggregates were shown to callers of this gateway, so that nobody is shown an older state afterwards by a replica
// of the log that lags.
type seen struct {
	mu   sync.Mutex
	upTo map[subject.Aggregate]uint64
}

func (s *seen) get(agg subject.Aggregate) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.upTo[agg]
}

func (s *seen) put(agg subject.Aggregate, seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if seq <= s.upTo[agg] {
		return
	}
	if len(s.upTo) >= seenMost {
		clear(s.upTo)
	}
	s.upTo[agg] = seq
}

func (s *seen) forget(agg subject.Aggregate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.upTo, agg)
}

// history is an aggregate's history at least as far as callers have seen it. An empty one is certain: the leader of the log has none.
func (u *UseCases) history(ctx context.Context, agg subject.Aggregate) (eventlog.History, error) {
	h, err := u.historyUpTo(ctx, agg)
	if err == nil {
		u.seen.put(agg, h.Tail().Seq)
	}
	return h, err
}

func (u *UseCases) historyUpTo(ctx context.Context, agg subject.Aggregate) (eventlog.History, error) {
	seq := u.seen.get(agg)
	if seq == 0 {
		return eventlog.Known(ctx, u.log, agg)
	}
	h, err := eventlog.LoadUpTo(ctx, u.log, agg, seq)
	if !fault.Is(err, fault.ReasonLogUnavailable) {
		return h, err
	}
	// A log that lost its end with its server's power never shows it again.
	if last, lerr := u.log.LastSeq(ctx, agg); lerr != nil || last >= seq {
		return h, err
	}
	u.seen.forget(agg)
	return eventlog.Current(ctx, u.log, agg)
}
