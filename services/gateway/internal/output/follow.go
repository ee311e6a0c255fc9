// Package output follows one exec: its chunks in order, each once, then its end. Live messages make it fast; what counts is what
// is stored, so whatever was missed is read from there.
package output

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/transcript"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

const (
	// liveBuffer is how many live messages wait for a slow reader: at most 8 MiB of chunks. Beyond it they are dropped and read
	// from the stream when the reader gets there, so a dead reader costs this much and no more.
	liveBuffer = 256
	// beat is the longest silence on a stream; proxies commonly cut at 60 s and more.
	beat = 10 * time.Second
	// resync is how often a silent follower looks at what is stored, for what live messages did not bring.
	resync = 2 * time.Second
)

// Item is one thing to tell the reader: a chunk, or a heartbeat where Chunk is nil.
type Item struct {
	Chunk *transcript.Chunk
}

// Follower follows one exec.
type Follower struct {
	js   jetstream.JetStream
	log  eventlog.Log
	exec subject.Aggregate
	out  string
	emit func(Item) error

	live []*nats.Subscription
	msgs chan *nats.Msg
	// next is the number of the chunk to emit; seq is where the stream was read up to.
	next, seq uint64
	end       *envelope.Recorded
}

// Open subscribes to the exec's live messages, so that nothing that happens from here on is missed. after is the last chunk the
// reader has. Close it.
func Open(nc *nats.Conn, js jetstream.JetStream, log eventlog.Log, exec subject.Aggregate, after uint64) (*Follower, error) {
	f := &Follower{
		js: js, log: log, exec: exec, out: subject.Output(exec.Tenant, exec.Sandbox, exec.ID),
		msgs: make(chan *nats.Msg, liveBuffer), next: after + 1,
	}
	for _, s := range []string{subject.Live(f.out), subject.Live(exec.Subject())} {
		sub, err := nc.ChanSubscribe(s, f.msgs)
		if err != nil {
			f.Close()
			return nil, fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "the event log cannot be reached; try again").
				WithRetry(time.Second).Because(err)
		}
		f.live = append(f.live, sub)
	}
	return f, nil
}

// Close ends the subscriptions.
func (f *Follower) Close() {
	for _, s := range f.live {
		_ = s.Unsubscribe() // the connection is closing if this fails
	}
}

// Run emits until the exec's last event and returns it, or until ctx ends or emit fails. fresh says that the exec begins behind
// Open, so that there is nothing stored yet to look for. A failure on failed ends it too.
func (f *Follower) Run(ctx context.Context, fresh bool, failed <-chan error, emit func(Item) error) (envelope.Recorded, error) {
	f.emit = emit
	if !fresh {
		if err := f.reload(ctx); err != nil {
			return envelope.Recorded{}, err
		}
	}
	look, silent := time.NewTicker(resync), time.NewTimer(beat)
	defer look.Stop()
	defer silent.Stop()
	for {
		if f.end != nil {
			return *f.end, f.finish(ctx)
		}
		before := f.next
		var err error
		select {
		case m := <-f.msgs:
			err = f.take(ctx, m)
		case <-look.C:
			err = f.reload(ctx)
		case <-silent.C:
			err = emit(Item{})
			silent.Reset(beat)
		case err = <-failed:
			if err == nil {
				failed = nil
			}
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			return envelope.Recorded{}, err
		}
		if f.next != before {
			silent.Reset(beat)
			look.Reset(resync)
		}
	}
}

// take handles one live message.
func (f *Follower) take(ctx context.Context, m *nats.Msg) error {
	if m.Subject == subject.Live(f.exec.Subject()) {
		e, err := envelope.Decode(f.exec.Subject(), 0, m.Header, m.Data)
		if err != nil {
			return err
		}
		f.ended(e)
		return nil
	}
	c, err := transcript.Decode(m.Header, m.Data, 0)
	if err != nil {
		return err
	}
	if c.Number > f.next {
		if err := f.catchUp(ctx); err != nil {
			return err
		}
	}
	if c.Number != f.next {
		return nil
	}
	return f.chunk(c)
}

func (f *Follower) ended(e envelope.Recorded) {
	switch e.Body.(type) {
	case *eventsv1.ExecCompleted, *eventsv1.ExecLost:
		f.end = &e
	}
}

func (f *Follower) chunk(c transcript.Chunk) error {
	f.next, f.seq = c.Number+1, c.Seq
	return f.emit(Item{Chunk: &c})
}

// catchUp emits what is stored behind the last emitted chunk. A chunk that is no longer there is an error, never a silent gap.
func (f *Follower) catchUp(ctx context.Context) error {
	return transcript.Read(ctx, f.js, f.out, f.seq+1, func(c transcript.Chunk) error {
		if c.Number < f.next {
			f.seq = c.Seq
			return nil
		}
		if c.Number > f.next {
			return fault.Newf(fault.FailedPrecondition, fault.ReasonCursorExpired,
				"output before chunk %d is no longer kept; attach again after chunk %d", c.Number, c.Number-1)
		}
		return f.chunk(c)
	})
}

// reload looks at what is stored: chunks first, then the exec's events, because the end is recorded behind the last chunk.
func (f *Follower) reload(ctx context.Context) error {
	if err := f.catchUp(ctx); err != nil {
		return err
	}
	h, err := f.log.Load(ctx, f.exec)
	if err != nil {
		return err
	}
	for _, e := range h.Events {
		f.ended(e)
	}
	return nil
}

// finish emits what the last event says there is and was not seen live.
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
	if f.next <= last {
		return fault.Newf(fault.FailedPrecondition, fault.ReasonCursorExpired,
			"output up to chunk %d is no longer kept; the receipt has its size and digest", last)
	}
	return nil
}
