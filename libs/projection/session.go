package projection

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/feed"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/topology"
)

const (
	callTimeout = 5 * time.Second
	minPause    = 50 * time.Millisecond
	maxPause    = 5 * time.Second
	// window bounds what is read ahead, in bytes.
	window = 8 << 20
	// minIdle is when a session that has caught up looks first, calmIdle when one that was not behind does: a look costs three calls
	// of the server, too much for each pause of a log that is in use. Each look without an event doubles it up to look.
	minIdle  = 20 * time.Millisecond
	calmIdle = 500 * time.Millisecond
	// look is how often an idle session makes sure that the stream is still the one it reads.
	look = 2 * time.Second
)

var errRecreated = errors.New("the stream of events was made anew")

// checkpoint is what the bucket holds. Seq counts only in the stream's life that Incarnation names, and only as long as the event
// there is the one that was Stored then.
type checkpoint struct {
	Incarnation string    `json:"incarnation"`
	Seq         uint64    `json:"seq"`
	Version     int       `json:"version"`
	Stored      time.Time `json:"stored,omitzero"`
}

// session is one life of a feed.
type session struct {
	r           *Runner
	kv          jetstream.KeyValue
	feed        *feed.Feed
	incarnation string
	// at is the sequence of the last event that was applied or skipped, saved that of the checkpoint.
	at, saved uint64
	// stored is when the stream took the event at at.
	stored time.Time
	// unsaved counts events since the checkpoint, since is when the first of them came.
	unsaved int
	since   time.Time
}

// session reads from the checkpoint on until ctx ends or something fails; works is called when it gets somewhere.
func (r *Runner) session(ctx context.Context, works func()) error {
	s, lost, err := r.open(ctx)
	if err != nil {
		return err
	}
	if lost > 0 {
		if err := r.rewind(ctx, lost); err != nil {
			return err
		}
	}
	s.feed, err = feed.Open(ctx, r.js, feed.Options{
		Stream: topology.StreamEvents, Subjects: r.p.Subjects(), From: s.at + 1, Window: window,
	})
	if err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	defer s.feed.Close()
	err = s.read(ctx, works)
	// On the way out the checkpoint is stored whatever ended the session.
	if e := s.save(context.WithoutCancel(ctx)); err == nil {
		err = e
	}
	return err
}

// rewind is told that the log has lost events up to the sequence lost, which the view has seen: it is put right, and every event is
// applied again.
func (r *Runner) rewind(ctx context.Context, lost uint64) error {
	r.metrics.rewinds.Inc()
	r.log.ErrorContext(ctx, "the log has lost events that this view has seen, as after a loss of power; building the view again", "seq", lost)
	healer, ok := r.p.(Healer)
	if !ok {
		return nil
	}
	if err := healer.Heal(ctx); err != nil {
		return fmt.Errorf("put the view right: %w", err)
	}
	return nil
}

// open loads the checkpoint. One of another incarnation or version counts as none; lost is the sequence of one that the log does not
// hold any more.
func (r *Runner) open(ctx context.Context) (_ *session, lost uint64, _ error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	stream, err := r.stream(ctx)
	if err != nil {
		return nil, 0, err
	}
	kv, err := r.js.KeyValue(ctx, topology.BucketCheckpoint)
	if err != nil {
		return nil, 0, fmt.Errorf("open checkpoints: %w", err)
	}
	s := &session{r: r, kv: kv, incarnation: stream.CachedInfo().Config.Metadata[topology.MetaIncarnation]}
	r.mu.Lock()
	forget := r.forget
	r.mu.Unlock()
	if forget != nil {
		if err := kv.Delete(ctx, r.key()); err != nil {
			return nil, 0, fmt.Errorf("forget checkpoint: %w", err)
		}
		r.at.advance(0, true)
		r.mu.Lock()
		r.forget = nil
		r.mu.Unlock()
		close(forget)
		return s, lost, nil
	}
	entry, err := kv.Get(ctx, r.key())
	if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, 0, fmt.Errorf("load checkpoint: %w", err)
	}
	var c checkpoint
	if err == nil && json.Unmarshal(entry.Value(), &c) == nil && c.Incarnation == s.incarnation &&
		c.Version == r.p.Version() {
		held, err := feed.Holds(ctx, stream, c.Seq, c.Stored)
		switch {
		case err != nil:
			return nil, 0, err
		case held:
			s.at, s.saved, s.stored = c.Seq, c.Seq, c.Stored
		default:
			lost = c.Seq
		}
	}
	r.at.advance(s.at, s.at == 0)
	return s, lost, nil
}

func (r *Runner) stream(ctx context.Context) (jetstream.Stream, error) {
	s, err := r.js.Stream(ctx, topology.StreamEvents)
	if err != nil {
		return nil, fmt.Errorf("open stream of events: %w", err)
	}
	return s, nil
}

func (s *session) read(ctx context.Context, works func()) error {
	// An idle moment is when the view is as far as the log, so it comes soon after the last event.
	idle, behind := minIdle, true
	for {
		m, ok, err := s.feed.Next(ctx, idle)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("read events: %w", err)
		case !ok:
			if err := s.idle(ctx); err != nil {
				return err
			}
			idle, behind = min(idle*2, look), false
			works()
			continue
		}
		if err := s.take(ctx, m); err != nil {
			return err
		}
		if behind = behind || m.Left > 0; behind {
			idle = minIdle
		} else {
			idle = calmIdle
		}
		works()
	}
}

// idle runs when no event came for a while: it stores the checkpoint, sees whether the stream is still the same, and how far it
// reached when the consumer had nothing left.
func (s *session) idle(ctx context.Context) error {
	if err := s.save(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	stream, err := s.r.stream(ctx)
	if err != nil {
		return err
	}
	info := stream.CachedInfo()
	if info.Config.Metadata[topology.MetaIncarnation] != s.incarnation || info.State.LastSeq < s.at {
		return errRecreated
	}
	// Asked behind the stream: what it has nothing left of is all that the stream had.
	left, delivered, err := s.feed.Left(ctx)
	if err != nil {
		return err
	}
	s.r.metrics.lag.Set(float64(left))
	if left == 0 && delivered <= s.at {
		s.r.at.advance(info.State.LastSeq, false)
	}
	return nil
}

func (s *session) take(ctx context.Context, m feed.Message) error {
	e, err := envelope.DecodeHead(m.Subject, m.Seq, m.Head(), m.Data)
	switch {
	case err != nil:
		// One bad message must not stop the view of all others.
		if err := s.r.setAside(ctx, m, dlq.ReasonPoison, 1, dlq.Undecodable("an event", err)); err != nil {
			return err
		}
		s.r.metrics.malformed.Inc()
	case e.Body == nil:
		s.r.metrics.unknown.Inc()
	default:
		if err := s.r.apply(ctx, e); err == nil {
			s.r.metrics.applied.Inc()
		} else if err := s.r.failed(ctx, m, err); err != nil {
			return fmt.Errorf("apply event %d: %w", m.Seq, err)
		}
	}
	s.at, s.stored = m.Seq, time.Unix(0, m.Stored).UTC()
	s.r.metrics.lag.Set(float64(m.Left))
	s.r.at.advance(m.Seq, false)
	if s.unsaved == 0 {
		s.since = time.Now()
	}
	s.unsaved++
	if s.unsaved >= SaveEvery || time.Since(s.since) >= SaveAfter {
		return s.save(ctx)
	}
	return nil
}

func (s *session) save(ctx context.Context) error {
	if s.unsaved == 0 || s.at == s.saved {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	data, err := json.Marshal(checkpoint{Incarnation: s.incarnation, Seq: s.at, Version: s.r.p.Version(), Stored: s.stored})
	if err != nil {
		return fmt.Errorf("encode checkpoint: %w", err)
	}
	if _, err := s.kv.Put(ctx, s.r.key(), data); err != nil {
		return fmt.Errorf("store checkpoint: %w", err)
	}
	s.saved, s.unsaved = s.at, 0
	return nil
}

// sampled is true for 1, 2, 4, 8 and so on.
func sampled(n int) bool { return bits.OnesCount(uint(n)) == 1 }

func backOff(ctx context.Context, failures int) {
	limit := min(maxPause, minPause<<min(failures, 10))
	_ = pause.For(ctx, limit/2+rand.N(limit/2)) //nolint:gosec // spreads load, guards nothing
}

// Distrust makes every view be put right and built again by the next session, those in ClickHouse too: for a log whose machine went
// down, after which no checkpoint says how much of its view is there. No projection may run meanwhile.
func Distrust(ctx context.Context, js jetstream.JetStream) error {
	kv, err := js.KeyValue(ctx, topology.BucketCheckpoint)
	if err != nil {
		return fmt.Errorf("open checkpoints: %w", err)
	}
	keys, err := kv.Keys(ctx)
	if errors.Is(err, jetstream.ErrNoKeysFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list checkpoints: %w", err)
	}
	for _, key := range keys {
		entry, err := kv.Get(ctx, key)
		if err != nil {
			return fmt.Errorf("load checkpoint %s: %w", key, err)
		}
		var fields map[string]json.RawMessage
		if json.Unmarshal(entry.Value(), &fields) != nil {
			continue // nobody goes on from one that cannot be read
		}
		// No log is as long, so none holds it.
		fields["seq"] = json.RawMessage(strconv.FormatUint(math.MaxUint64, 10))
		data, err := json.Marshal(fields)
		if err != nil {
			return fmt.Errorf("encode checkpoint %s: %w", key, err)
		}
		if _, err := kv.Update(ctx, key, data, entry.Revision()); err != nil {
			return fmt.Errorf("store checkpoint %s: %w", key, err)
		}
	}
	return nil
}
