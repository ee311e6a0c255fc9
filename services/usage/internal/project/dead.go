package project

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/feed"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

const service = "usage"

// undecodable is the sentence about an event whose headers or body are none.
const undecodable = "it cannot be decoded"

// unusable is an event that can never become a row. The sentence is safe to show; what is behind it may quote the event.
type unusable struct {
	sentence string
	cause    error
}

func (u *unusable) Error() string { return u.sentence }

func (u *unusable) Unwrap() error { return u.cause }

func (u *unusable) fault() *fault.Error {
	reason := fault.ReasonValidation
	if u.sentence == undecodable {
		reason = dlq.CauseUndecodable
	}
	return fault.New(fault.InvalidArgument, reason, u.sentence).Because(u.cause)
}

// dead says why an event that could not be projected is set aside after a number of attempts; empty where it is tried again.
// panics counts those of the event.
func dead(err error, panics *int) (reason string, cause error) {
	var (
		bad     *unusable
		crashed *dlq.PanicError
	)
	switch {
	case errors.As(err, &bad):
		return dlq.ReasonPoison, bad.fault()
	case errors.As(err, &crashed):
		if *panics++; *panics >= dlq.MaxPanics {
			return dlq.ReasonPanic, err
		}
	}
	return "", nil
}

// bury stores the message among the dead letters. Done again it makes the same letter.
func (p *Projector) bury(ctx context.Context, m feed.Message, reason string, attempts int, cause error) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if err := dlq.Store(ctx, p.js, dlq.Info{
		Service: service, Consumer: topology.CheckpointUsage, Reason: reason, Attempts: attempts,
		Stream: topology.StreamEvents, Seq: m.Seq, Subject: m.Subject, Stored: moment(m.Stored), Died: time.Now(),
	}.Why(cause), m.Header(), m.Data); err != nil {
		return err
	}
	p.metrics.dead.Inc()
	p.log.Error("event went to the dead letters: what it costs is not in the rows", "seq", m.Seq, "subject", m.Subject, "reason", reason, "error", cause)
	return nil
}

// redrive inserts the row of one event of the log now. It works beside the session, of which it uses nothing that is not for several.
func (p *Projector) redrive(ctx context.Context, seq uint64) error {
	stream, err := p.js.Stream(ctx, topology.StreamEvents)
	if err != nil {
		return fmt.Errorf("open the stream of events: %w", err)
	}
	stored, err := stream.GetMsg(ctx, seq)
	if err != nil {
		return fmt.Errorf("read event %d: %w", seq, err)
	}
	m := feed.Stored(stored)
	beside := &Projector{js: p.js, log: p.log, metrics: p.metrics, owners: newOwners(p.js), words: newWords()}
	b := &batch{}
	made, err := beside.row(ctx, b, m, m.Head())
	var bad *unusable
	switch {
	case errors.As(err, &bad):
		return bad.fault()
	case err != nil || made == 0:
		return err
	}
	rows := clickhouse.Rows(b.row)
	if made > 1 {
		rows.Add(&b.reading)
	}
	if err := p.write(ctx, rows); err != nil {
		return err
	}
	// The hours that the row belongs to may have been added up without it. Where this fails the letter stays, and is redriven again.
	if err := p.sink.Late(ctx, b.row.Tenant, b.row.Sandbox); err != nil {
		return fmt.Errorf("note a late row: %w", err)
	}
	return nil
}
