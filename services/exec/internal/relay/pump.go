package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/sandtrail/sandtrail/libs/pause"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

const (
	// DefaultLimit is how many bytes of a stream are stored as they come.
	DefaultLimit = 1 << 30
	// TailBytes is the most that is stored of what a stream writes behind its limit. A toolbox keeps the last 8 MiB by default.
	TailBytes = 1 << 20

	// beyond is an offset that no output reaches: a stream attached from there holds the program back no more and sends nothing.
	beyond = 1 << 62
	// tailTries is how often the toolbox is asked for the tail once the end is known, tailPause the time between.
	tailTries = 5
	tailPause = 100 * time.Millisecond
)

// offsets are those of Stdout and Stderr.
type offsets map[uint32]uint64

var streams = []uint32{Stdout, Stderr}

// pump reads the toolbox into the queue. It checks offsets: bytes that came before are cut off, bytes that never came are a gap.
//
// A stream that passes its limit is not read any more: the toolbox keeps its head and tail in a spool of fixed size, and the
// program goes on at its own pace. Once the end is known the tail is fetched from there. So neither memory nor OUT grows with what a
// program writes, and whoever takes over after a crash finds the same limit passed at the same byte.
type pump struct {
	queue  *queue
	exec   Exec
	attach Attach
	limit  uint64
	log    *slog.Logger

	next   offsets
	over   map[uint32]bool
	stream Stream
	close  func()
}

func newPump(q *queue, x Exec, attach Attach, o Options, stdout, stderr uint64) *pump {
	p := &pump{
		queue: q, exec: x, attach: attach, limit: x.Limit, log: o.Log,
		next: offsets{Stdout: stdout, Stderr: stderr}, over: map[uint32]bool{}, close: func() {},
	}
	if p.limit == 0 {
		p.limit = o.Limit
	}
	return p
}

// open attaches from offsets on. What was attached before is let go of behind that: as long as somebody reads, the program cannot
// overrun its spool.
func (p *pump) open(ctx context.Context, from offsets) error {
	s, err := p.attach(ctx, from[Stdout], from[Stderr])
	if err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	p.close()
	stop := context.AfterFunc(ctx, s.Close)
	p.stream, p.close = s, func() {
		stop()
		s.Close()
	}
	return nil
}

// run reads until the program's end.
func (p *pump) run(ctx context.Context) (*toolboxv1.End, error) {
	defer func() { p.close() }()
	end, err := p.toEnd(ctx)
	if err != nil {
		return nil, err
	}
	total := offsets{Stdout: end.GetStdout().GetBytes(), Stderr: end.GetStderr().GetBytes()}
	if err := p.tail(ctx, total); err != nil {
		return nil, err
	}
	for _, s := range streams {
		// Output that the toolbox counted and did not send is missing: said, never silent.
		p.gap(s, total[s])
	}
	return end, nil
}

func (p *pump) toEnd(ctx context.Context) (*toolboxv1.End, error) {
	for {
		e, length, err := p.stream.Next()
		if err != nil {
			return nil, cut(ctx, err)
		}
		switch ev := e.GetEvent().(type) {
		case *toolboxv1.AttachEvent_Data:
			err = p.data(ctx, ev.Data.GetStream(), ev.Data.GetOffset(), uint64(length)) //nolint:gosec // a length
		case *toolboxv1.AttachEvent_Skip:
			err = p.skip(ctx, ev.Skip.GetStream(), ev.Skip.GetTo())
		case *toolboxv1.AttachEvent_End:
			return ev.End, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// data takes n bytes from an offset on; those behind the limit are left to the toolbox.
func (p *pump) data(ctx context.Context, s uint32, from, n uint64) error {
	if Name(s) == "" {
		return fmt.Errorf("read output: there is no stream %d", s)
	}
	if p.over[s] {
		return nil
	}
	p.gap(s, min(from, p.limit))
	if to := min(from+n, p.limit); to > p.next[s] {
		if past := p.next[s] - from; past > 0 {
			if _, err := io.CopyN(io.Discard, p.stream, int64(past)); err != nil { //nolint:gosec // less than one message
				return cut(ctx, err)
			}
		}
		added, err := p.queue.put(ctx, s, p.next[s], int(to-p.next[s]), p.stream) //nolint:gosec // less than one message
		p.next[s] += uint64(added)                                                //nolint:gosec // a length
		if err != nil {
			return cut(ctx, err)
		}
	}
	if from+n > p.limit {
		return p.pass(ctx, s)
	}
	return nil
}

func (p *pump) skip(ctx context.Context, s uint32, to uint64) error {
	if Name(s) == "" {
		return fmt.Errorf("read output: there is no stream %d", s)
	}
	if p.over[s] {
		return nil
	}
	p.gap(s, min(to, p.limit))
	if to > p.limit {
		return p.pass(ctx, s)
	}
	return nil
}

func (p *pump) gap(s uint32, to uint64) {
	if to > p.next[s] {
		p.queue.putGap(s, p.next[s], to)
		p.next[s] = to
	}
}

// pass leaves a stream that wrote more than its limit to the toolbox.
func (p *pump) pass(ctx context.Context, s uint32) error {
	p.over[s] = true
	p.log.Info("output is over its limit", "exec", p.exec.ID, "stream", Name(s), "limit", p.limit)
	if p.exec.Passed != nil {
		p.exec.Passed(s)
	}
	from := offsets{}
	for _, s := range streams {
		from[s] = p.next[s]
		if p.over[s] {
			from[s] = beyond
		}
	}
	return p.open(ctx, from)
}

// tail fetches the last bytes of the streams over their limit. Where the toolbox cannot be reached for it any more they are missing:
// how the program ended is known and must not be lost with them.
func (p *pump) tail(ctx context.Context, total offsets) error {
	keep := min(p.limit, TailBytes)
	p.limit = beyond
	for try := range tailTries {
		from, open := offsets{}, false
		for _, s := range streams {
			from[s] = beyond
			if p.over[s] && total[s] > p.next[s] {
				from[s], open = max(p.next[s], total[s]-min(total[s], keep)), true
			}
		}
		if !open {
			return nil
		}
		if try > 0 {
			if err := pause.For(ctx, tailPause); err != nil {
				return err
			}
		}
		err := p.rest(ctx, from)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.log.Warn("the last output of a command is not read yet", "exec", p.exec.ID, "try", try+1, "error", err)
	}
	return nil
}

// rest reads everything from offsets on.
func (p *pump) rest(ctx context.Context, from offsets) error {
	if err := p.open(ctx, from); err != nil {
		return err
	}
	over := p.over
	p.over = map[uint32]bool{}
	_, err := p.toEnd(ctx)
	p.over = over
	return err
}

// cut is the error of a stream that broke off.
func cut(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read output: %w", err)
}
