package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/transcript"
)

// ErrFenced: another relay stored output of this exec. Read the position again before going on.
var ErrFenced = errors.New("another relay writes the output of this exec")

// ErrSealed: the output was declared final before all of it was stored. Whoever did so records the end of the exec.
var ErrSealed = errors.New("the output of this exec is final")

const (
	// publishTimeout is how long one publish may take before the tail is asked whether it arrived.
	publishTimeout = 5 * time.Second
	retryMin       = 50 * time.Millisecond
	retryMax       = 2 * time.Second
	// headerSession tells our own chunk from that of another relay with the same number.
	headerSession = "Sandtrail-Relay"
)

// publisher stores the chunks of one exec one behind the other.
type publisher struct {
	js      jetstream.JetStream
	stream  string
	log     *slog.Logger
	subject string
	exec    string
	session string
	pos     Position
}

func (r *Relay) publisher(x Exec, pos Position) *publisher {
	return &publisher{
		js: r.js, stream: r.stream, log: r.opts.Log, subject: x.Subject, exec: x.ID, session: ids.New(), pos: pos,
	}
}

// publish stores one segment and moves the position behind it. It tries until it is stored, ctx ends, or another relay was
// faster: ErrFenced. The position is of no more use after an error.
func (p *publisher) publish(ctx context.Context, s segment) error {
	msg, err := p.message(s)
	if err != nil {
		return err
	}
	wait := retryMin
	for {
		err := p.try(ctx, msg)
		if err == nil || errors.Is(err, ErrFenced) || permanent(err) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.log.Warn("output is not stored yet", "exec", p.exec, "chunk", p.pos.Chunk, "error", err)
		if err := pause.For(ctx, wait); err != nil {
			return err
		}
		wait = min(2*wait, retryMax)
	}
}

func (p *publisher) message(s segment) (*nats.Msg, error) {
	msg := nats.NewMsg(p.subject)
	msg.Header.Set(transcript.HeaderStream, Name(s.stream))
	msg.Header.Set(transcript.HeaderOffset, strconv.FormatUint(s.offset, 10))
	msg.Header.Set(transcript.HeaderTime, time.Now().UTC().Format(time.RFC3339Nano))
	msg.Header.Set(headerSession, p.session)
	at := p.pos.Stream(s.stream)
	if s.gapTo > 0 {
		msg.Header.Set(transcript.HeaderGapTo, strconv.FormatUint(s.gapTo, 10))
		at.skip(s.gapTo)
	} else {
		msg.Data = s.data
		at.End += uint64(len(s.data))
		at.sum.Write(s.data)
	}
	p.pos.Chunk++
	msg.Header.Set(nats.MsgIdHdr, p.exec+"-"+strconv.FormatUint(p.pos.Chunk, 10))
	if err := p.pos.put(msg.Header); err != nil {
		return nil, fmt.Errorf("describe chunk: %w", err)
	}
	return msg, nil
}

// try publishes once and, where the answer leaves it open, asks the tail of the subject what came of it.
func (p *publisher) try(ctx context.Context, msg *nats.Msg) error {
	pctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	ack, err := p.js.PublishMsg(pctx, msg, jetstream.WithExpectLastSequencePerSubject(p.pos.Seq))
	if err == nil && !ack.Duplicate {
		p.pos.Seq = ack.Sequence
		return nil
	}
	if err == nil {
		err = errors.New("a chunk of this number is stored")
	}
	if permanent(err) || ctx.Err() != nil {
		return err
	}
	tctx, cancelTail := context.WithTimeout(ctx, publishTimeout)
	defer cancelTail()
	tail, terr := directget.LeaderLast(tctx, p.js, p.stream, p.subject)
	switch {
	case terr != nil:
		return errors.Join(err, terr)
	case tail == nil:
		// OUT has let go of the exec's chunks by its age or size: the next one stands behind nothing.
		p.pos.Seq = 0
		return err
	case tail.Header.Get(headerSession) == p.session && tail.Header.Get(nats.MsgIdHdr) == msg.Header.Get(nats.MsgIdHdr):
		p.pos.Seq = tail.Seq
		return nil
	case tail.Seq > p.pos.Seq:
		return ErrFenced
	default:
		return err
	}
}

// permanent: no later try can succeed.
func permanent(err error) bool {
	return errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadSubject)
}
