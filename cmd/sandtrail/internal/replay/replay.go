// Package replay reads the log again from one sequence to another, and gives its events to a sink. It can be interrupted anywhere: who
// goes on from its checkpoint comes to the same result, and says so by the same digests.
package replay

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/events"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/topology"
)

const (
	// saveEvery and saveAfter are when a checkpoint is written: so many events, or so long, behind the last one.
	saveEvery = 5000
	saveAfter = 5 * time.Second
	// maxNames bounds the types that are counted by name; the rest counts together.
	maxNames  = 256
	otherType = "other"
	// patience is how often an end that does not come is asked for again.
	patience = 20
	again    = 250 * time.Millisecond
)

// Event is an event of the log as a sink gets it.
type Event struct {
	directget.Message
	// Recorded is the event decoded; its Body is nil where its type is not known.
	Recorded envelope.Recorded
	// Unreadable says why the message is no event that can be decoded, nil where it is one.
	Unreadable error
}

// Sink takes events. It takes an event again after an interruption, and must be left the same by that.
type Sink interface {
	// Take gives what was made of an event, nil where nothing was. It need not be stored yet. The bytes are the same each time.
	Take(ctx context.Context, e Event) (made []byte, err error)
	// Flush stores what was taken.
	Flush(ctx context.Context) error
	// Size is how many bytes were stored, where a sink counts them.
	Size() int64
}

// Job says what to replay.
type Job struct {
	JS   jetstream.JetStream
	Sink Sink
	// Rate is how many events a second are read at most; 0 is no bound.
	Rate float64
	// Save stores how far it is; nil keeps it nowhere. SaveEvery is behind how many events, 5,000 unless set; it does so every 5 s anyway.
	Save      func(State) error
	SaveEvery int
	// Progress gets the sequence that was read last; may be nil.
	Progress func(seq uint64)
}

// Plan is what makes two replays the same one.
type Plan struct {
	Version int    `json:"version"`
	Log     string `json:"log_id"`
	Into    string `json:"into"`
	From    uint64 `json:"from"`
	To      uint64 `json:"to"`
	// Subjects is a filter of subjects, that of all events for all; Types are short names, none for all.
	Subjects string   `json:"filter"`
	Types    []string `json:"types"`
}

// State is how far a replay is and what came of it.
type State struct {
	Plan
	// Next is the sequence to go on from.
	Next uint64 `json:"next"`
	Done bool   `json:"done"`
	// Events were wanted and read, Made of them led to something in the sink, Unknown are of types that this program does not have,
	// Unreadable no events at all.
	Events     uint64            `json:"events"`
	Made       uint64            `json:"made"`
	Unknown    uint64            `json:"unknown"`
	Unreadable uint64            `json:"unreadable"`
	ByType     map[string]uint64 `json:"by_type"`
	// Digest is over the events that were read: equal digests, equal events. Result is over what the sink made of them.
	Digest string `json:"digest"`
	Result string `json:"result_digest"`
	// Bytes is how much the sink has stored.
	Bytes int64 `json:"bytes"`
}

// Begin is the state in front of the first event of a plan.
func Begin(p Plan) State {
	zero := hex.EncodeToString(make([]byte, sha256.Size))
	return State{Plan: p, Next: max(p.From, 1), ByType: map[string]uint64{}, Digest: zero, Result: zero}
}

// runner is one run of a job.
type runner struct {
	Job
	state          State
	digest, result chain
	wants          events.Filter
	pace           *pace
	saved          time.Time
	unsaved        int
}

// errEnough ends the reading of events in good order.
var errEnough = errors.New("the end is reached")

// Run replays from a state on. What it returns beside an error is the last state that was stored.
func Run(ctx context.Context, j Job, from State) (State, error) {
	if from.Done {
		return from, nil
	}
	r := &runner{Job: j, state: from, wants: events.Filter{Types: from.Types}, pace: newPace(j.Rate), saved: time.Now()}
	stored := from
	if err := errors.Join(r.digest.read(from.Digest), r.result.read(from.Result)); err != nil {
		return stored, err
	}
	if r.state.ByType == nil {
		r.state.ByType = map[string]uint64{}
	}
	keep := func() error {
		if err := r.store(ctx); err != nil {
			return err
		}
		stored = r.copy()
		return nil
	}
	if err := r.read(ctx, keep); err != nil {
		return stored, err
	}
	r.state.Next, r.state.Done = r.state.To+1, true
	err := keep()
	return stored, err
}

// read reads to the end of the plan. The log has it: what a replica does not show yet is waited for.
func (r *runner) read(ctx context.Context, keep func() error) error {
	last, err := r.lastWanted(ctx)
	if err != nil {
		return err
	}
	for range patience {
		err := directget.Each(ctx, r.JS, topology.StreamEvents, r.state.Subjects, r.state.Next, func(m directget.Message) error {
			if m.Seq > r.state.To {
				return errEnough
			}
			if err := r.take(ctx, m); err != nil {
				return err
			}
			r.state.Next = m.Seq + 1
			if r.Progress != nil {
				r.Progress(m.Seq)
			}
			if r.unsaved >= cmp.Or(r.SaveEvery, saveEvery) || time.Since(r.saved) >= saveAfter {
				return keep()
			}
			return nil
		})
		switch {
		case errors.Is(err, errEnough):
			return nil
		case err != nil:
			return unreachable(ctx, err)
		case r.state.Next > min(last, r.state.To):
			return nil
		}
		if err := pause.For(ctx, again); err != nil {
			return err
		}
	}
	return fault.Newf(fault.Unavailable, fault.ReasonLogUnavailable, "the log does not show what is behind event %d; try again", r.state.Next-1)
}

// lastWanted is the last sequence that the filter matches, as the leader of the log has it.
func (r *runner) lastWanted(ctx context.Context) (uint64, error) {
	m, err := directget.LeaderLast(ctx, r.JS, topology.StreamEvents, r.state.Subjects)
	if err != nil {
		return 0, unreachable(ctx, err)
	}
	if m == nil || m.Seq > r.state.To {
		// Whether something wanted stands right before To is found out by reading; what stands behind it ends that.
		return 0, nil
	}
	return m.Seq, nil
}

func unreachable(ctx context.Context, err error) error {
	var f *fault.Error
	if ctx.Err() != nil || errors.As(err, &f) {
		return err
	}
	var sink *sinkError
	if errors.As(err, &sink) {
		return sink.err
	}
	return fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "the log cannot be read").Because(err)
}

// sinkError is a failure of the sink, which says nothing about the log.
type sinkError struct{ err error }

func (e *sinkError) Error() string { return e.err.Error() }
func (e *sinkError) Unwrap() error { return e.err }

// take gives one event to the sink and counts it.
func (r *runner) take(ctx context.Context, m directget.Message) error {
	r.unsaved++
	typ := m.Header.Get(envelope.HeaderType)
	if !r.wants.Wants(typ) {
		return nil
	}
	if err := r.pace.wait(ctx); err != nil {
		return err
	}
	e := Event{Message: m}
	e.Recorded, e.Unreadable = envelope.Decode(m.Subject, m.Seq, m.Header, m.Data)
	made, err := r.Sink.Take(ctx, e)
	if err != nil {
		return &sinkError{fmt.Errorf("event %d: %w", m.Seq, err)}
	}
	r.count(e, typ)
	// The digest is over what was read, not over what it says of itself.
	r.digest.add(sequence(m.Seq), []byte(m.Subject), []byte(m.Header.Get(envelope.HeaderID)), []byte(typ), []byte(m.Header.Get(envelope.HeaderDigest)), m.Data)
	if made != nil {
		r.state.Made++
		r.result.add(made)
	}
	return nil
}

func (r *runner) count(e Event, typ string) {
	r.state.Events++
	switch {
	case e.Unreadable != nil:
		r.state.Unreadable++
		return
	case e.Recorded.Body == nil:
		r.state.Unknown++
	}
	if _, known := r.state.ByType[typ]; !known && len(r.state.ByType) >= maxNames {
		typ = otherType
	}
	r.state.ByType[typ]++
}

// store stores what was taken, and then how far that is.
func (r *runner) store(ctx context.Context) error {
	if err := r.Sink.Flush(ctx); err != nil {
		return &sinkError{err}
	}
	r.state.Digest, r.state.Result, r.state.Bytes = r.digest.String(), r.result.String(), r.Sink.Size()
	r.saved, r.unsaved = time.Now(), 0
	if r.Save == nil {
		return nil
	}
	return r.Save(r.state)
}

func (r *runner) copy() State {
	s := r.state
	s.ByType = make(map[string]uint64, len(r.state.ByType))
	for k, v := range r.state.ByType {
		s.ByType[k] = v
	}
	return s
}

func sequence(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// chain is a digest that goes on from its own value.
type chain [sha256.Size]byte

func (c *chain) add(parts ...[]byte) {
	h := sha256.New()
	h.Write(c[:])
	for _, p := range parts {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(p))))
		h.Write(p)
	}
	h.Sum(c[:0])
}

func (c *chain) String() string { return hex.EncodeToString(c[:]) }

func (c *chain) read(s string) error {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(c) {
		return errors.New("a digest of the checkpoint is none")
	}
	copy(c[:], b)
	return nil
}
