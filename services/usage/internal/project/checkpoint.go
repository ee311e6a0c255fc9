package project

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/feed"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/topology"
)

const (
	// standbyEvery is how often a projector that stands by looks at the checkpoint. One that does not move for standbyTime while
	// events wait is that of a projector that has died.
	standbyEvery = time.Second
	standbyTime  = 10 * time.Second
)

// errOvertaken: another projector has stored a checkpoint, or a person has removed it.
var errOvertaken = errors.New("the checkpoint was changed by another")

// checkpoint is what the bucket holds: every event up to Seq is in ClickHouse or among the dead letters. It counts only in the
// stream's life that Incarnation names and for the version of the mapping that made the rows.
type checkpoint struct {
	Incarnation string `json:"incarnation"`
	Seq         uint64 `json:"seq"`
	Version     int    `json:"version"`
	// Stored is when the stream took the event at Seq.
	Stored time.Time `json:"stored,omitzero"`
	// Projector is who stored it.
	Projector string `json:"projector"`
	// Clear: every row is to be removed before the log is projected again. It is set until the first batch behind that.
	Clear bool `json:"clear,omitempty"`
	// Epoch is one for the rows between two times that all were removed: what was inserted in another says nothing about this one.
	Epoch string `json:"epoch,omitempty"`
}

// resume finds where to go on.
func (s *session) resume(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	stream, err := s.p.js.Stream(ctx, topology.StreamEvents)
	if err != nil {
		return 0, fmt.Errorf("look up the stream of events: %w", err)
	}
	s.incarnation = stream.CachedInfo().Config.Metadata[topology.MetaIncarnation]
	c, revision, err := load(ctx, s.p.kv)
	if err != nil {
		return 0, err
	}
	s.revision, s.epoch = revision, c.Epoch
	if revision == 0 {
		if c.Seq, err = s.adopt(ctx); err != nil {
			return 0, err
		}
	} else if c.Clear {
		return 0, s.clear(ctx)
	} else if c.Incarnation != s.incarnation || c.Version != schemaVersion {
		s.p.log.Info("projecting the log from its beginning: the checkpoint is of another stream or of another mapping")
		c = checkpoint{}
	} else if held, err := feed.Holds(ctx, stream, c.Seq, c.Stored); err != nil {
		return 0, err
	} else if !held {
		s.p.metrics.rewinds.Inc()
		s.p.log.Error("the log has lost events that there are rows of, as after a loss of power; making all rows again", "seq", c.Seq)
		return 0, s.clear(ctx)
	}
	s.p.done.set(c.Seq, nanoseconds(c.Stored))
	return c.Seq, s.retire(ctx)
}

// clear removes every row. Before it does, the checkpoint says so: another projector fails to store one from then on, and whoever
// goes on after a death in between clears again.
func (s *session) clear(ctx context.Context) error {
	s.epoch = ids.New()
	if err := s.put(ctx, checkpoint{Incarnation: s.incarnation, Version: schemaVersion, Projector: s.p.id, Clear: true}); err != nil {
		return err
	}
	if err := s.p.sink.Clear(ctx); err != nil {
		return fmt.Errorf("remove all rows: %w", err)
	}
	return nil
}

// load reads the checkpoint. Revision 0: there is none. What cannot be read counts as one of sequence 0.
func load(ctx context.Context, kv jetstream.KeyValue) (c checkpoint, revision uint64, err error) {
	e, err := kv.Get(ctx, topology.CheckpointUsage)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return checkpoint{}, 0, nil
	}
	if err != nil {
		return checkpoint{}, 0, fmt.Errorf("load the checkpoint: %w", err)
	}
	return readCheckpoint(e.Value()), e.Revision(), nil
}

// readCheckpoint gives the zero checkpoint where data is none.
func readCheckpoint(data []byte) checkpoint {
	var c checkpoint
	if json.Unmarshal(data, &c) != nil {
		return checkpoint{}
	}
	return c
}

// store stores a checkpoint behind the one that this session knows; errOvertaken where that is not the last one any more.
func (s *session) store(ctx context.Context, seq uint64, stored int64) error {
	return s.put(ctx, checkpoint{Incarnation: s.incarnation, Seq: seq, Version: schemaVersion, Stored: moment(stored), Projector: s.p.id})
}

func (s *session) put(ctx context.Context, c checkpoint) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	c.Epoch = s.epoch
	data, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode the checkpoint: %w", err)
	}
	var revision uint64
	if s.revision == 0 {
		revision, err = s.p.kv.Create(ctx, topology.CheckpointUsage, data)
	} else {
		revision, err = s.p.kv.Update(ctx, topology.CheckpointUsage, data, s.revision)
	}
	if errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
		// Ours, where the answer to an attempt before was lost.
		revision, err = s.p.own(ctx, data)
	}
	if err != nil {
		return fmt.Errorf("store the checkpoint: %w", err)
	}
	s.revision = revision
	s.p.done.set(c.Seq, nanoseconds(c.Stored))
	return nil
}

// own gives the revision of the checkpoint where it is data; errOvertaken where it is not.
func (p *Projector) own(ctx context.Context, data []byte) (uint64, error) {
	e, err := p.kv.Get(ctx, topology.CheckpointUsage)
	if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return 0, err
	}
	if err != nil || string(e.Value()) != string(data) {
		return 0, errOvertaken
	}
	return e.Revision(), nil
}

// adopt goes on where the durable consumer of earlier versions stopped, if there is one: everything up to its floor was inserted
// and then acknowledged. Otherwise it begins at the beginning.
func (s *session) adopt(ctx context.Context) (uint64, error) {
	c, err := s.p.js.Consumer(ctx, topology.StreamEvents, topology.RetiredUsage)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look up the consumer of earlier versions: %w", err)
	}
	floor := c.CachedInfo().AckFloor.Stream
	s.p.log.Info("going on where the consumer of an earlier version stopped", "seq", floor)
	return floor, s.store(ctx, floor, 0)
}

// retire removes the consumer of earlier versions, whose place is in the checkpoint now: it would show a lag that grows for ever.
func (s *session) retire(ctx context.Context) error {
	err := s.p.js.DeleteConsumer(ctx, topology.StreamEvents, topology.RetiredUsage)
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("remove the consumer of earlier versions: %w", err)
	}
	return nil
}

// Anew makes the next projector read the log from its beginning, and the rows of another life than those that stand: their tables were
// changed. What stands is replaced.
func Anew(ctx context.Context, js jetstream.JetStream) error {
	kv, err := js.KeyValue(ctx, topology.BucketCheckpoint)
	if err != nil {
		return fmt.Errorf("look up the bucket of checkpoints: %w", err)
	}
	for {
		c, revision, err := load(ctx, kv)
		if err != nil || revision == 0 {
			return err
		}
		data, err := json.Marshal(checkpoint{Incarnation: c.Incarnation, Version: c.Version, Clear: c.Clear, Epoch: ids.New()})
		if err != nil {
			return fmt.Errorf("encode the checkpoint: %w", err)
		}
		_, err = kv.Update(ctx, topology.CheckpointUsage, data, revision)
		if err == nil {
			return nil
		}
		// A projector at work has stored another one.
		if !errors.Is(err, jetstream.ErrKeyExists) && !errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
			return fmt.Errorf("store the checkpoint: %w", err)
		}
	}
}

// standBy returns when the projector that is at work seems to have stopped, or the checkpoint is gone.
func (p *Projector) standBy(ctx context.Context) {
	var seen uint64
	moved := time.Now()
	for ctx.Err() == nil && !p.closed() {
		_ = pause.For(ctx, standbyEvery)
		c, revision, last, err := p.look(ctx)
		switch {
		case err != nil:
			// Whoever is at work is cut off as well.
			continue
		case revision == 0:
			return
		case revision != seen || c.Seq >= last:
			seen, moved = revision, time.Now()
		case time.Since(moved) > standbyTime:
			p.log.Info("the checkpoint does not move, taking over")
			return
		}
	}
}

// look reads the checkpoint and how far the log is.
func (p *Projector) look(ctx context.Context) (c checkpoint, revision, last uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if c, revision, err = load(ctx, p.kv); err != nil {
		return c, 0, 0, err
	}
	stream, err := p.js.Stream(ctx, topology.StreamEvents)
	if err != nil {
		return c, 0, 0, fmt.Errorf("look up the stream of events: %w", err)
	}
	p.done.set(c.Seq, nanoseconds(c.Stored))
	return c, revision, stream.CachedInfo().State.LastSeq, nil
}

// moment and nanoseconds turn Unix nanoseconds into a time and back; 0 is the zero time.
func moment(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

func nanoseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// Position is how far rows are complete.
type Position struct {
	// Seq is the last event whose row stands; At is when the stream took it.
	Seq uint64
	At  time.Time
	// Life names the log and the mapping that the rows are of: sequences of two lives do not compare.
	Life string
	// Schema is the version of the mapping.
	Schema uint16
	// Mine: the checkpoint is one that this projector stored.
	Mine bool
}

// Position reads the checkpoint. false: there is none yet, or the rows are being made anew.
func (p *Projector) Position(ctx context.Context) (Position, bool, error) {
	return position(ctx, p.kv, p.id)
}

// Standing is Position for whoever is no projector.
func Standing(ctx context.Context, js jetstream.JetStream) (Position, bool, error) {
	kv, err := js.KeyValue(ctx, topology.BucketCheckpoint)
	if err != nil {
		return Position{}, false, fmt.Errorf("look up the bucket of checkpoints: %w", err)
	}
	return position(ctx, kv, "")
}

func position(ctx context.Context, kv jetstream.KeyValue, id string) (Position, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	c, _, err := load(ctx, kv)
	if err != nil || c.Clear || c.Seq == 0 || c.Stored.IsZero() || c.Version != schemaVersion {
		return Position{}, false, err
	}
	life := fmt.Sprintf("%s:%s:%d", c.Incarnation, c.Epoch, c.Version)
	return Position{Seq: c.Seq, At: c.Stored, Life: life, Schema: schemaVersion, Mine: c.Projector == id}, true, nil
}
