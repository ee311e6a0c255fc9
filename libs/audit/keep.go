package audit

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// Writer signs the log as it grows.
type Writer struct {
	JS     jetstream.JetStream
	Log    eventlog.Log
	Signer Signer
	// Actor is who signs, as its events have it.
	Actor string
	// Now is the clock of checkpoints.
	Now func() time.Time

	// most bounds what one checkpoint adds, for tests; 0 is maxStep.
	most uint64
}

// maxStep is how many events one checkpoint adds at most: of a long log that was never signed each step is kept.
const maxStep = 200_000

// Sign signs what the log has gained since its last checkpoint, and gives the checkpoint that then is the last one. Where nothing but
// that checkpoint stands behind it, nothing is signed. A last checkpoint that this signer has not signed, or that is damaged, is not built
// upon: the log is then read from its beginning. Of several that sign at once one does. A zero checkpoint: the log is empty.
func (w Writer) Sign(ctx context.Context) (Checkpoint, error) {
	for {
		log, err := OpenLog(ctx, w.JS)
		if err != nil {
			return Checkpoint{}, err
		}
		last, tail, err := Latest(ctx, log, Keys{w.Signer.Public()})
		if err != nil && tail.Seq == 0 {
			return last, err
		}
		if err != nil {
			last = Checkpoint{}
		}
		// Somebody else may have signed since the log was asked where it ends.
		if last.Size >= log.LastSeq || last.Seq == log.LastSeq && last.Size+1 == last.Seq {
			return last, nil
		}
		next, err := w.step(ctx, log, last)
		if err != nil {
			return last, err
		}
		if next, err = w.record(ctx, next, tail); err != nil {
			if errors.Is(err, eventlog.ErrConflict) {
				continue // somebody else has signed
			}
			return last, err
		}
		if next.Size >= log.LastSeq {
			return next, nil
		}
	}
}

// step continues the tree of the last checkpoint and signs it.
func (w Writer) step(ctx context.Context, log Log, last Checkpoint) (Checkpoint, error) {
	t, err := treeOf(last.Size, last.Range)
	if err != nil {
		return last, damage(last.Seq, err)
	}
	most := w.most
	if most == 0 {
		most = maxStep
	}
	to := min(log.LastSeq, last.Size+most)
	s, err := log.Open(ctx, last.Size+1)
	if err != nil {
		return last, err
	}
	err = Each(ctx, s, func(e *Entry) error {
		if e.Seq != t.size()+1 {
			return damage(t.size()+1, errors.New("it is missing"))
		}
		t.add(Leaf(e.Seq, e.Subject, envelope.ReadHead(e.Headers).Digest), nil)
		if e.Seq == to {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return last, err
	}
	if t.size() != to {
		return last, damage(t.size()+1, errors.New("it is missing"))
	}
	return Sign(ctx, w.Signer, Checkpoint{LogID: log.ID, Size: to, Root: t.root(), Time: w.Now().UTC(), Range: t.hashes()})
}

func damage(seq uint64, err error) error {
	return fault.New(fault.FailedPrecondition, fault.ReasonAuditDamaged, "the log cannot be signed: verify it").Because(fmt.Errorf("event %d: %w", seq, err))
}

// record appends it behind the last checkpoint.
func (w Writer) record(ctx context.Context, c Checkpoint, tail eventlog.Tail) (Checkpoint, error) {
	e := envelope.Event{
		Meta: envelope.Meta{ID: ids.Derive("signed", c.LogID, fmt.Sprint(tail.Seq), c.Note), Actor: w.Actor, Time: c.Time},
		Body: c.Event(),
	}
	stored, err := w.Log.Append(ctx, c.Aggregate(), tail, e)
	if err != nil {
		return c, err
	}
	c.Seq = stored[0].Seq
	return c, nil
}

// Latest reads the last checkpoint of the log, zero without one, and where the next one goes. With keys it must be signed by one of
// them. Of one that is not, or that is damaged, it gives the place and an error.
func Latest(ctx context.Context, log Log, keys Keys) (Checkpoint, eventlog.Tail, error) {
	m, err := directget.LeaderLast(ctx, log.js, topology.StreamEvents, subject.Log(log.ID).Subject())
	if err != nil {
		return Checkpoint{}, eventlog.Tail{}, unavailable(err)
	}
	if m == nil {
		return Checkpoint{}, eventlog.Tail{}, nil
	}
	tail := eventlog.Tail{Seq: m.Seq}
	if tail.Digest, err = hex.DecodeString(m.Header.Get(envelope.HeaderDigest)); err != nil {
		return Checkpoint{}, tail, damage(m.Seq, err)
	}
	c, err := openBody(m.Subject, m.Seq, m.Header.Get(envelope.HeaderType), m.Data, keys)
	if err != nil {
		return Checkpoint{}, tail, damage(m.Seq, err)
	}
	return c, tail, nil
}
