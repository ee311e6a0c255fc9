package client

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

// Stream is the output of one exec, from the offsets of its Attach on. One goroutine receives; Close may come from any.
type Stream struct {
	ctx    context.Context
	conn   net.Conn
	events *wire.Events
	stop   func() bool
	// kept is where the connection goes behind the End.
	kept     shelf
	identity string
	closing  sync.Once
	ended    atomic.Bool
}

// Attach asks for the output of an exec and does not wait for any: an unknown exec is the first Recv's error. When ctx ends
// the connection is closed at once and Recv returns the context's error.
func (c *Client) Attach(ctx context.Context, r *toolboxv1.Attach) (_ *Stream, err error) {
	if c.observe != nil {
		var end func(error)
		ctx, end = c.observe(ctx, "attach")
		defer func() { end(err) }()
	}
	way, err := c.way(ctx, "attach")
	if err != nil {
		return nil, err
	}
	conn := c.kept.take(way.Identity)
	if conn != nil && !silent(conn) {
		conn.Close()
		conn = nil
	}
	if conn == nil {
		if conn, err = open(ctx, way, "attach"); err != nil {
			return nil, err
		}
	}
	s := &Stream{ctx: ctx, conn: conn, kept: c.kept, identity: way.Identity, events: wire.NewEvents(conn)}
	s.stop = context.AfterFunc(ctx, func() { conn.Close() })
	req := &toolboxv1.Request{Token: c.token, Target: way.Target, Call: &toolboxv1.Request_Attach{Attach: r}}
	// A write that failed may be a toolbox that refused and closed: its answer is then waiting for the first Recv.
	if err := wire.Write(conn, req); err != nil && ctx.Err() != nil {
		s.Close()
		return nil, failure(ctx, "attach", err)
	}
	return s, nil
}

// Recv returns the next event; io.EOF behind the End. A connection cut before the End is ErrUnavailable: attach again from
// the offsets reached. The event and its bytes belong to the caller.
func (s *Stream) Recv() (*toolboxv1.AttachEvent, error) {
	e, n, err := s.Next()
	if err != nil || e.GetData() == nil {
		return e, err
	}
	d := &toolboxv1.Data{Stream: e.GetData().GetStream(), Offset: e.GetData().GetOffset(), Data: make([]byte, n)}
	if _, err := io.ReadFull(s, d.Data); err != nil {
		return nil, err
	}
	return &toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_Data{Data: d}}, nil
}

// Next is Recv without a copy: output comes without its bytes, of which length follow, to be had from Read before the next call.
// What was not read is skipped then, and the event is valid until then.
func (s *Stream) Next() (e *toolboxv1.AttachEvent, length int, err error) {
	if s.ended.Load() {
		return nil, 0, io.EOF
	}
	res, n, err := s.events.Next()
	switch {
	case errors.Is(err, io.EOF):
		return nil, 0, failure(s.ctx, "attach", io.ErrUnexpectedEOF)
	case err != nil:
		return nil, 0, failure(s.ctx, "attach", err)
	case res.Error != nil:
		return nil, 0, refusal(s.ctx, "attach", res.Error)
	}
	e = res.GetAttach()
	if e.GetEvent() == nil {
		return nil, 0, failure(s.ctx, "attach", errors.New("answer to another call"))
	}
	s.ended.Store(e.GetEnd() != nil)
	return e, n, nil
}

// Read gives the bytes of the output that Next told of, io.EOF behind them. Its errors are those of Recv.
func (s *Stream) Read(p []byte) (int, error) {
	n, err := s.events.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = failure(s.ctx, "attach", err)
	}
	return n, err
}

// Close hangs up. It never fails and may be called more than once.
func (s *Stream) Close() {
	s.closing.Do(func() {
		// Behind the End the connection is free for another call, and nothing reads from it any more.
		if s.stop() && s.ended.Load() && s.kept.give(s.conn, s.identity) {
			return
		}
		s.conn.Close()
	})
}
