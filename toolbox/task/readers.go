package task

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"sync"
	"time"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/spool"
)

const (
	// firstAttach is how long a program is held back for a caller that has yet to attach.
	firstAttach = 5 * time.Second
	// nextAttach is the same for a caller whose connection was cut.
	nextAttach = 5 * time.Second
	// floodBytes is the most output in one event.
	floodBytes = 256 << 10
)

// Readers give the output of one program, and its end, to those who attach.
type Readers struct {
	spool *spool.Spool
	done  <-chan struct{}
	end   func() *toolboxv1.End
	// first stands for the caller until it attaches, so that a fast program cannot overrun its spool before that.
	first *spool.Reader

	mu sync.Mutex
	// place is the last reader that left, until another comes or its time is over.
	place *spool.Reader
}

// NewReaders reads from s. done closes when the program has ended; end is asked only then, behind the end of the spool.
func NewReaders(s *spool.Spool, done <-chan struct{}, end func() *toolboxv1.End) (*Readers, error) {
	first, err := s.Reader(0, 0)
	if err != nil {
		return nil, err
	}
	return &Readers{spool: s, done: done, end: end, first: first}, nil
}

// Started holds the program back for its first caller, for some seconds.
func (o *Readers) Started() {
	// Not longer than the program: the timer holds on to its spool.
	hold := time.AfterFunc(firstAttach, o.first.Close)
	go func() { <-o.done; hold.Stop() }()
}

// Attach sends what is kept from the offsets on, and what comes, up to the end.
func (o *Readers) Attach(ctx context.Context, r *toolboxv1.Attach, send func(*toolboxv1.AttachEvent) error) error {
	reader, err := o.spool.Reader(r.StdoutOffset, r.StderrOffset)
	if errors.Is(err, fs.ErrClosed) {
		<-o.done
		return SendEnd(o.end(), r, send)
	}
	if err != nil {
		return err
	}
	defer o.leave(reader)
	o.Arrive()
	pooled := buffers.Get().(*[]byte)
	defer buffers.Put(pooled)
	for buf := *pooled; ; {
		piece, err := reader.Next(ctx, buf)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, fs.ErrClosed):
			<-o.done
			return send(&toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_End{End: o.end()}})
		case err != nil:
			return err
		}
		if err := send(event(piece)); err != nil {
			return err
		}
		if len(piece.Data) == len(buf) && len(buf) < floodBytes {
			// The program writes faster than it is read: larger pieces cost less. Most programs never get here.
			buf = make([]byte, floodBytes)
		}
	}
}

func event(piece spool.Piece) *toolboxv1.AttachEvent {
	if len(piece.Data) == 0 {
		return &toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_Skip{Skip: &toolboxv1.Skip{Stream: piece.Stream, From: piece.Offset, To: piece.SkipTo}}}
	}
	return &toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_Data{Data: &toolboxv1.Data{Stream: piece.Stream, Offset: piece.Offset, Data: piece.Data}}}
}

// leave lets go of a reader. While the program runs it holds its place for a moment: a caller that was cut off comes back, and what a
// fast program wrote until then would be lost.
func (o *Readers) leave(r *spool.Reader) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case <-o.done:
		r.Close()
		return
	default:
	}
	if o.place != nil {
		o.place.Close()
	}
	o.place = r
	time.AfterFunc(nextAttach, r.Close)
}

// Arrive lets go of the places that are held for a caller: one is here, or none is waited for any more.
func (o *Readers) Arrive() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.first.Close()
	if o.place != nil {
		o.place.Close()
		o.place = nil
	}
}

// SendEnd answers an Attach where the output is no longer there.
func SendEnd(end *toolboxv1.End, r *toolboxv1.Attach, send func(*toolboxv1.AttachEvent) error) error {
	for _, s := range []struct {
		stream   uint32
		from, to uint64
	}{{spool.Stdout, r.StdoutOffset, end.GetStdout().GetBytes()}, {spool.Stderr, r.StderrOffset, end.GetStderr().GetBytes()}} {
		if s.from >= s.to {
			continue
		}
		skip := &toolboxv1.Skip{Stream: s.stream, From: s.from, To: s.to}
		if err := send(&toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_Skip{Skip: skip}}); err != nil {
			return err
		}
	}
	return send(&toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_End{End: end}})
}
