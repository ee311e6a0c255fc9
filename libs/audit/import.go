package audit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// Import puts a log into an empty server, for investigation: each event at its own sequence, as it was. What the server keeps beside it
// differs: when it was stored.
type Import struct {
	JS jetstream.JetStream
	// Options are those of the topology that is made.
	Options topology.Options
	// Progress is told up to which sequence was stored.
	Progress func(seq uint64)
}

const (
	// inFlight is how many events are on their way at once.
	inFlight = 256
	// stall bounds the wait for one acknowledgement.
	stall = 30 * time.Second
)

// Run imports what the source gives, which must be whole from the first event on: verify it before. It gives fault.FailedPrecondition
// where the server holds anything, or where an event would not stand where it stood. It returns how many events are stored.
func (i Import) Run(ctx context.Context, s Source) (uint64, error) {
	if err := i.prepare(ctx); err != nil {
		s.Close()
		return 0, err
	}
	var (
		sent []stored
		done uint64
	)
	settle := func(left int) error {
		for len(sent) > left {
			if err := sent[0].wait(ctx); err != nil {
				return err
			}
			done++
			sent = sent[1:]
		}
		if i.Progress != nil {
			i.Progress(done)
		}
		return nil
	}
	last := uint64(0)
	err := Each(ctx, s, func(e *Entry) error {
		if e.Seq != last+1 {
			return misplaced(last + 1)
		}
		last = e.Seq
		m, err := message(e)
		if err != nil {
			return err
		}
		f, err := i.JS.PublishMsgAsync(m, jetstream.WithExpectLastSequence(e.Seq-1), jetstream.WithStallWait(stall))
		if err != nil {
			return unavailable(err)
		}
		if sent = append(sent, stored{f, e.Seq}); len(sent) >= inFlight {
			return settle(inFlight / 2)
		}
		return nil
	})
	if err == nil {
		err = settle(0)
	}
	return done, err
}

// prepare refuses a server that holds anything and makes the topology.
func (i Import) prepare(ctx context.Context) error {
	all := i.JS.ListStreams(ctx)
	for info := range all.Info() {
		if info.State.LastSeq > 0 || info.State.Msgs > 0 {
			return fault.Newf(fault.FailedPrecondition, fault.ReasonIllegalState, "the server is not empty: stream %s holds or held messages", info.Config.Name)
		}
	}
	if err := all.Err(); err != nil {
		return unavailable(err)
	}
	return topology.Ensure(ctx, i.JS, i.Options)
}

func misplaced(seq uint64) error {
	return fault.Newf(fault.FailedPrecondition, fault.ReasonAuditDamaged, "event %d cannot be put where it stood: only a log that is whole can be imported", seq)
}

type stored struct {
	jetstream.PubAckFuture
	seq uint64
}

func (s stored) wait(ctx context.Context) error {
	select {
	case ack := <-s.Ok():
		if ack.Sequence != s.seq || ack.Duplicate {
			return misplaced(s.seq)
		}
		return nil
	case err := <-s.Err():
		var api *jetstream.APIError
		if errors.As(err, &api) {
			return fault.Newf(fault.FailedPrecondition, fault.ReasonAuditDamaged, "the server does not take event %d; something else may write to it", s.seq).Because(err)
		}
		return unavailable(err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// message is the entry without what it once told the server: where to stand, and in which batch.
func message(e *Entry) (*nats.Msg, error) {
	h, err := nats.DecodeHeadersMsg([]byte(e.Headers))
	if err != nil {
		return nil, misplaced(e.Seq)
	}
	for name := range h {
		if strings.HasPrefix(name, "Nats-") && name != jetstream.MsgIDHeader {
			delete(h, name)
		}
	}
	if !strings.HasPrefix(e.Subject, "evt.") || strings.ContainsAny(e.Subject, " \t\r\n*>") {
		return nil, fmt.Errorf("event %d stands on no subject of an event: %w", e.Seq, misplaced(e.Seq))
	}
	return &nats.Msg{Subject: e.Subject, Header: h, Data: e.Data}, nil
}
