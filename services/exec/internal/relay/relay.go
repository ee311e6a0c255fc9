package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/topology"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

// Options of a Relay; zero values are replaced by the defaults named.
type Options struct {
	// Interval is how long bytes wait for company after a chunk was stored (20 ms); the first ones never wait.
	Interval time.Duration
	// MinChunk bytes do not wait for the interval (32 KiB). MaxChunk bounds one chunk (248 KiB, which with its headers stays under topology.MaxChunkSize).
	MinChunk, MaxChunk int
	// QueueBytes is what one exec may hold that is not stored (512 KiB). Full: the toolbox is not read further.
	QueueBytes int
	// Limit is that of an exec that has none: 1 GiB.
	Limit uint64
	// Budget bounds all execs together; nil: only QueueBytes bounds each.
	Budget Budget
	// Fair holds floods back while other sandboxes work; nil: nothing does.
	Fair *Fair
	Log  *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Interval <= 0 {
		o.Interval = 20 * time.Millisecond
	}
	if o.MinChunk <= 0 {
		o.MinChunk = 32 << 10
	}
	if o.MaxChunk <= 0 {
		o.MaxChunk = topology.MaxChunkSize - 8<<10
	}
	if o.QueueBytes <= 0 {
		o.QueueBytes = 512 << 10
	}
	if o.Limit == 0 {
		o.Limit = DefaultLimit
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Stream is an attached exec: Next gives output in order and then its end. Output comes without its bytes: length of them follow,
// to be had from Read before the next Next. Close makes both return.
type Stream interface {
	Next() (e *toolboxv1.AttachEvent, length int, err error)
	io.Reader
	Close()
}

// Attach opens the output of the exec from the offsets of its two streams on.
type Attach func(ctx context.Context, stdout, stderr uint64) (Stream, error)

// Exec names what is relayed.
type Exec struct {
	ID string
	// Subject is subject.Output of the exec.
	Subject string
	// Sandbox is whose output it is for Options.Fair.
	Sandbox string
	// Limit is how many bytes of each stream are stored as they come; 0 is Options.Limit. Of what comes behind them the last TailBytes
	// are stored at the end (Limit, if that is less), what lies between is a gap.
	Limit uint64
	// Passed, where set, is told of a stream that wrote more than Limit, again after a restart. It must not wait.
	Passed func(stream uint32)
}

// Relay stores output in OUT. It is safe for concurrent use; one exec has one Run at a time in a process, and a guard
// in OUT against those of other processes.
type Relay struct {
	js     jetstream.JetStream
	stream string
	opts   Options
}

// New makes a relay into the stream of that name.
func New(ctx context.Context, js jetstream.JetStream, stream string, o Options) (*Relay, error) {
	if _, err := js.Stream(ctx, stream); err != nil {
		return nil, fmt.Errorf("open stream %s: %w", stream, err)
	}
	return &Relay{js: js, stream: stream, opts: o.withDefaults()}, nil
}

// Begin says that a command begins in a sandbox: floods of others make room for it from now on.
func (r *Relay) Begin(sandbox string) {
	if r.opts.Fair != nil {
		r.opts.Fair.Begin(sandbox)
	}
}

// Position reads how far the exec's output is stored; the zero Position where nothing is. A replica that lags may show less: a Run from
// there is fenced.
func (r *Relay) Position(ctx context.Context, x Exec) (Position, error) {
	last, err := directget.Last(ctx, r.js, r.stream, x.Subject, 1)
	if err != nil {
		return Position{}, fmt.Errorf("read last chunk: %w", err)
	}
	if len(last) == 0 {
		return Position{}, nil
	}
	return parsePosition(last[0].Seq, last[0].Header)
}

// Seal makes what is stored of an exec's output final and gives its position, for whoever records that its end was not seen: a relay that
// has more of it, here or in another process, can store none of that behind the loss any more and gets ErrFenced, then ErrSealed. The seal
// is one more chunk, without bytes. It may be repeated; an error leaves open whether it is there.
func (r *Relay) Seal(ctx context.Context, x Exec) (Position, error) {
	for {
		pos, err := r.final(ctx, x)
		if err != nil || pos.Sealed {
			return pos, err
		}
		p := r.publisher(x, pos)
		msg, err := p.message(segment{stream: Stdout, offset: pos.Stream(Stdout).End})
		if err != nil {
			return pos, err
		}
		msg.Header.Set(headerSealed, "1")
		switch err := p.try(ctx, msg); {
		case err == nil:
			p.pos.Sealed = true
			return p.pos, nil
		case !errors.Is(err, ErrFenced):
			return pos, fmt.Errorf("seal the output: %w", err)
		}
		// A chunk came first, and counts.
	}
}

// final is Position for whoever records it: nothing that was stored before the call is missed. The leader of OUT answers it.
func (r *Relay) final(ctx context.Context, x Exec) (Position, error) {
	m, err := directget.LeaderLast(ctx, r.js, r.stream, x.Subject)
	if err != nil {
		return Position{}, fmt.Errorf("read last chunk: %w", err)
	}
	if m == nil {
		return Position{}, nil
	}
	return parsePosition(m.Seq, m.Header)
}

// Run attaches behind pos and relays until the program's end, which it returns once all output is stored. It takes pos over.
//
// Any error leaves the end open: run again from Position. ErrFenced: another relay was faster. ErrSealed: no more can be stored. A stream
// that ends without an end of the program is io.ErrUnexpectedEOF.
func (r *Relay) Run(ctx context.Context, x Exec, pos Position, attach Attach) (Position, *toolboxv1.End, error) {
	if pos.Sealed {
		return pos, nil, ErrSealed
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q := newQueue(r.opts)
	src := newPump(q, x, attach, r.opts, pos.Stream(Stdout).End, pos.Stream(Stderr).End)
	if err := src.open(ctx, src.next); err != nil {
		return pos, nil, err
	}
	pump := make(chan pumped, 1)
	go func() {
		end, err := src.run(ctx)
		q.close()
		pump <- pumped{end, err}
	}()
	p := r.publisher(x, pos)
	err := p.drain(ctx, q, func(n int) time.Duration {
		if r.opts.Fair == nil {
			return 0
		}
		return r.opts.Fair.Charge(x.Sandbox, n)
	})
	if err != nil {
		// The pump may wait for room that nobody makes any more.
		cancel()
	}
	got := <-pump
	q.drop()
	if err == nil {
		err = got.err
	}
	if err != nil {
		return p.pos, nil, err
	}
	return p.pos, got.end, nil
}

type pumped struct {
	end *toolboxv1.End
	err error
}

// drain stores what comes until the queue is closed and empty. charge says how long the next chunk must wait behind one of n bytes:
// the queue fills up meanwhile, and once the toolbox's spool is full too the program waits. The end of the output waits for nothing.
func (p *publisher) drain(ctx context.Context, q *queue, charge func(n int) time.Duration) error {
	var last, free time.Time
	for {
		s, ok := q.next(ctx, last)
		if !ok {
			return ctx.Err()
		}
		if d := time.Until(free); d > 0 {
			if err := pause.For(ctx, d); err != nil {
				return err
			}
		}
		err := p.publish(ctx, s)
		n := len(s.data)
		q.stored(s)
		if err != nil {
			return fmt.Errorf("store output: %w", err)
		}
		last = time.Now()
		free = last.Add(charge(n))
	}
}
