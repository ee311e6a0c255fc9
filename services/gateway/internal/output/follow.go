// Package output follows one exec: its chunks in order, each once, then its end. Live messages make it fast; what counts is what
// is stored, so whatever was missed is read from there.
package output

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/transcript"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/stored"
)

// Timing of a follower; a zero field is the default that its comment names.
type Timing struct {
	// Beat is the longest silence towards the reader: 10 s. Proxies commonly cut at 60 s and more.
	Beat time.Duration
	// Resync is how soon a silent follower looks at what is stored, for what live messages did not bring: 2 s. Each look that
	// finds nothing doubles it, up to four times.
	Resync time.Duration
	// Patience is how long the log may be out of reach before the reader is told: 30 s.
	Patience time.Duration
}

func (t Timing) withDefaults() Timing {
	return Timing{
		Beat:     cmp.Or(t.Beat, 10*time.Second),
		Resync:   cmp.Or(t.Resync, 2*time.Second),
		Patience: cmp.Or(t.Patience, 30*time.Second),
	}
}

// Item is one thing to tell the reader: a chunk; that the exec was accepted; that its end was seen and is not recorded yet; or, where it is
// empty, a heartbeat.
type Item struct {
	Chunk    *transcript.Chunk
	Accepted bool
	Pending  bool
}

// Follower follows one exec.
type Follower struct {
	js     jetstream.JetStream
	log    eventlog.Log
	exec   subject.Aggregate
	out    string
	timing Timing
	memory *stored.Memory
	emit   func(Item) error

	live    []*nats.Subscription
	queue   *queue
	pending chan struct{}
	// next is the number of the chunk to emit; seq is where the stream was read up to.
	next, seq uint64
	end       *envelope.Recorded
	// down is since when the log cannot be reached; zero while it can.
	down time.Time
}

// Open subscribes to the exec's live messages, so that nothing that happens from here on is missed. after is the last chunk the
// reader has; what waits for it counts in memory. Close it.
func Open(js jetstream.JetStream, log eventlog.Log, memory *stored.Memory, exec subject.Aggregate, after uint64, timing Timing) (*Follower, error) {
	f := &Follower{
		js: js, log: log, exec: exec, out: subject.Output(exec.Tenant, exec.Sandbox, exec.ID), timing: timing.withDefaults(),
		memory: memory, queue: newQueue(memory), pending: make(chan struct{}, 1), next: after + 1,
	}
	for _, s := range []string{subject.Live(f.out), subject.Live(exec.Subject())} {
		sub, err := js.Conn().Subscribe(s, f.queue.put)
		if err != nil {
			f.Close()
			return nil, stored.Unreachable(err)
		}
		f.live = append(f.live, sub)
	}
	return f, nil
}

// Pending makes Run tell the reader that the end was seen and is not recorded yet.
func (f *Follower) Pending() { signal(f.pending) }

// Close ends the subscriptions.
func (f *Follower) Close() {
	for _, s := range f.live {
		_ = s.Unsubscribe() // the connection is closing if this fails
	}
	f.queue.close()
}

// Run emits until the exec's last event and returns it, or until ctx ends or emit fails. fresh says that the exec begins behind
// Open, so that there is nothing stored yet to look for. outcome brings nil once the exec was accepted, or an error, which ends it
// too. An outage of the log shorter than Timing.Patience is waited out.
func (f *Follower) Run(ctx context.Context, fresh bool, outcome <-chan error, emit func(Item) error) (envelope.Recorded, error) {
	f.emit = emit
	if !fresh {
		err := f.seek(ctx)
		if err == nil {
			err = f.reload(ctx)
		}
		if err := f.tolerate(ctx, err); err != nil {
			return envelope.Recorded{}, err
		}
	}
	pause := f.timing.Resync
	look, silent := time.NewTimer(pause), time.NewTimer(f.timing.Beat)
	defer look.Stop()
	defer silent.Stop()
	for {
		before := f.next
		if f.end != nil {
			err := f.finish(ctx)
			if err == nil {
				return *f.end, nil
			}
			if err := f.tolerate(ctx, err); err != nil {
				return envelope.Recorded{}, err
			}
		}
		var err error
		select {
		case <-f.queue.wake:
			err = f.tolerate(ctx, f.drain(ctx))
		case <-look.C:
			err = f.tolerate(ctx, f.reload(ctx))
			if f.down.IsZero() {
				pause = min(2*pause, 4*f.timing.Resync)
			}
			look.Reset(pause)
		case <-silent.C:
			err = emit(Item{})
			silent.Reset(f.timing.Beat)
		case <-f.pending:
			err = emit(Item{Pending: true})
		case err = <-outcome:
			outcome = nil
			if err == nil {
				err = emit(Item{Accepted: true})
			}
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			return envelope.Recorded{}, err
		}
		if f.next != before {
			pause = f.timing.Resync
			look.Reset(pause)
			silent.Reset(f.timing.Beat)
		}
	}
}

// tolerate passes over an outage of the log until it lasts too long: the next look reads again from where this one stopped.
func (f *Follower) tolerate(ctx context.Context, err error) error {
	if ctx.Err() != nil || !fault.Is(err, fault.ReasonLogUnavailable) {
		f.down = time.Time{}
		return err
	}
	if f.down.IsZero() {
		f.down = time.Now()
	}
	if time.Since(f.down) < f.timing.Patience {
		return nil
	}
	return err
}

// drain handles the live messages that wait.
func (f *Follower) drain(ctx context.Context) error {
	for {
		m, missed := f.queue.take()
		if missed {
			if err := f.reload(ctx); err != nil {
				return err
			}
		}
		if m == nil {
			return nil
		}
		if err := f.take(ctx, m); err != nil {
			return err
		}
	}
}

// take handles one live message. One that cannot be read says nothing: what is stored does.
func (f *Follower) take(ctx context.Context, m *nats.Msg) error {
	if m.Subject == subject.Live(f.exec.Subject()) {
		if e, err := envelope.Decode(f.exec.Subject(), republished(m), m.Header, m.Data); err == nil {
			f.ended(e)
		}
		return nil
	}
	c, err := transcript.Decode(m.Header, m.Data, 0)
	switch {
	case err != nil || c.Number < f.next:
		return nil //nolint:nilerr // see above
	case c.Number > f.next || c.Seq == 0:
		return f.catchUp(ctx)
	default:
		return f.chunk(c)
	}
}

// republished is the sequence of a live message in its stream, 0 where it does not say.
func republished(m *nats.Msg) uint64 {
	seq, err := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return 0
	}
	return seq
}

func (f *Follower) ended(e envelope.Recorded) {
	switch e.Body.(type) {
	case *eventsv1.ExecCompleted, *eventsv1.ExecLost:
		f.end = &e
	}
}

func (f *Follower) chunk(c transcript.Chunk) error {
	if err := f.emit(Item{Chunk: &c}); err != nil {
		return err
	}
	f.next, f.seq = c.Number+1, c.Seq
	return nil
}

// seek finds where in the stream the reader's next chunk stands, so that what it has already is not read again: whoever comes back
// near the end of a long transcript costs some tens of messages. Numbers rise with sequences.
func (f *Follower) seek(ctx context.Context) error {
	if f.next == 1 {
		return nil
	}
	last, err := f.at(ctx, 0)
	if err != nil || last == nil {
		return err
	}
	if last.Number < f.next {
		f.seq = last.Seq
		return nil
	}
	low, high := uint64(1), last.Seq
	for low < high {
		middle := low + (high-low)/2
		c, err := f.at(ctx, middle)
		switch {
		case err != nil:
			return err
		case c == nil || c.Number >= f.next:
			high = middle
		default:
			low = c.Seq + 1
		}
	}
	f.seq = low - 1
	return nil
}

// at is the exec's first chunk from a sequence on, its last one for 0; nil without one.
func (f *Follower) at(ctx context.Context, seq uint64) (*transcript.Chunk, error) {
	m, err := stored.One(ctx, f.js, topology.StreamOutput, f.out, seq)
	if err != nil || m == nil {
		return nil, err
	}
	c, err := transcript.Decode(m.Header, m.Data, m.Seq)
	return &c, err
}

// catchUp emits what is stored behind the last emitted chunk. A chunk that is no longer there is an error, never a silent gap; one
// that is stored twice is emitted once.
func (f *Follower) catchUp(ctx context.Context) error {
	return stored.Each(ctx, f.js, f.memory, topology.StreamOutput, f.out, f.seq+1, f.stored)
}

// stored emits a stored chunk that the reader does not have yet.
func (f *Follower) stored(m directget.Message) error {
	c, err := transcript.Decode(m.Header, m.Data, m.Seq)
	switch {
	case err != nil:
		return err
	case c.Number < f.next:
		f.seq = c.Seq
		return nil
	case c.Number > f.next:
		return expired(c.Number)
	default:
		return f.chunk(c)
	}
}

// expired is the fault of a cursor below the oldest chunk that is kept.
func expired(oldest uint64) error {
	after := strconv.FormatUint(oldest-1, 10)
	return fault.Newf(fault.FailedPrecondition, fault.ReasonCursorExpired,
		"output before chunk %d is no longer kept; attach again after chunk %s", oldest, after).
		WithFields(map[string]string{"after_chunk": "the oldest position is " + after})
}

// reload looks at what is stored: chunks first, then the exec's events, because the end is recorded behind the last chunk.
func (f *Follower) reload(ctx context.Context) error {
	if err := f.catchUp(ctx); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, stored.PageWait)
	defer cancel()
	h, err := f.log.Load(wait, f.exec)
	switch {
	case err != nil && wait.Err() != nil && ctx.Err() == nil:
		return stored.Unreachable(err)
	case err != nil:
		return err
	}
	for _, e := range h.Events {
		f.ended(e)
	}
	return nil
}

// finish emits what the last event says there is and was not emitted yet.
func (f *Follower) finish(ctx context.Context) error {
	var last uint64
	switch b := f.end.Body.(type) {
	case *eventsv1.ExecCompleted:
		last = b.GetLastChunk()
	case *eventsv1.ExecLost:
		last = b.GetLastChunk()
	}
	if f.next > last {
		return nil
	}
	if err := f.catchUp(ctx); err != nil {
		return err
	}
	// What a replica does not show may be on its way to it. Only what the leader does not have either is gone.
	for f.next <= last {
		m, err := stored.Next(ctx, f.js, topology.StreamOutput, f.out, f.seq+1)
		if err != nil {
			return err
		}
		if m != nil {
			if err := f.stored(*m); err != nil {
				return err
			}
			continue
		}
		return fault.Newf(fault.FailedPrecondition, fault.ReasonCursorExpired,
			"output up to chunk %d is no longer kept; the receipt has its size and digest", last).
			WithFields(map[string]string{"after_chunk": "the oldest position is " + strconv.FormatUint(last, 10)})
	}
	return nil
}
