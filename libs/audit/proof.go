package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/transparency-dev/merkle/compact"
	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// Proof shows that one event is part of what was signed, to whoever has the public key and nothing else. It holds the event, and of all
// others only hashes.
type Proof struct {
	Version int         `json:"version"`
	Event   ProvenEvent `json:"event"`
	// Previous is the digest of the event before it in its aggregate; empty of the first.
	Previous []byte `json:"previous_digest"`
	// Path are the hashes from the event's leaf to the root, as RFC 6962 has them.
	Path [][]byte `json:"path"`
	// Checkpoint is a note that covers the event.
	Checkpoint string `json:"checkpoint"`
}

// ProvenEvent is the event: all that its digest covers, and the digest.
type ProvenEvent struct {
	Subject     string `json:"subject"`
	Sequence    uint64 `json:"sequence"`
	ID          string `json:"id"`
	Type        string `json:"type"`
	Schema      string `json:"schema"`
	Tenant      string `json:"tenant_id"`
	Actor       string `json:"actor"`
	Cause       string `json:"cause"`
	Correlation string `json:"correlation_id"`
	Time        string `json:"time"`
	Digest      string `json:"digest"`
	Body        []byte `json:"body"`
}

const (
	proofVersion = 1
	// MaxProof bounds a proof as it is written, in bytes: an event in base64 and what belongs to it.
	MaxProof = 2 * maxEntry
	maxPath  = 64
)

func provenEvent(e *Entry) ProvenEvent {
	h := envelope.ReadHead(e.Headers)
	return ProvenEvent{
		Subject: e.Subject, Sequence: e.Seq, ID: h.ID, Type: h.Type, Schema: h.Schema, Tenant: h.Tenant, Actor: h.Actor, Cause: h.Cause,
		Correlation: h.Correlation, Time: h.Time, Digest: h.Digest, Body: e.Data,
	}
}

func (p *ProvenEvent) head() *envelope.Head {
	return &envelope.Head{
		ID: p.ID, Type: p.Type, Schema: p.Schema, Tenant: p.Tenant, Actor: p.Actor, Cause: p.Cause, Correlation: p.Correlation, Time: p.Time, Digest: p.Digest,
	}
}

// prover looks for what a proof is made of.
type prover struct {
	seq  uint64
	keys Keys
	p    Proof
	// subject of the event.
	subject string
	// base is the last checkpoint that does not cover the event, from whose tree the proof's begins; over the first that does.
	base, over Checkpoint
}

// Prove makes a proof of the event at a sequence. keys, where they are given, are those one of which must have signed the checkpoint. It gives fault.NotFound where no event stands
// there, fault.FailedPrecondition where no checkpoint covers it yet, or where what is there does not prove it.
func Prove(ctx context.Context, open Opener, seq uint64, keys Keys) (Proof, error) {
	p := prover{seq: seq, keys: keys}
	p.p.Version = proofVersion
	if err := p.find(ctx, open); err != nil {
		return Proof{}, err
	}
	if err := p.path(ctx, open); err != nil {
		return Proof{}, err
	}
	if _, err := p.p.Check(keys); err != nil {
		return Proof{}, fault.Newf(fault.FailedPrecondition, fault.ReasonAuditDamaged, "event %d cannot be proved: %v", seq, err)
	}
	return p.p, nil
}

// find reads the event, the digest before it, and the checkpoints around it.
func (p *prover) find(ctx context.Context, open Opener) error {
	if err := p.name(ctx, open); err != nil {
		return err
	}
	subjects := []string{p.subject, subject.AllLogs()}
	if isCheckpoint(p.subject) {
		subjects = subjects[1:] // the one would be part of the other
	}
	s, err := open(ctx, 1, subjects...)
	if err != nil {
		return err
	}
	var last string
	found := false
	err = Each(ctx, s, func(e *Entry) error {
		switch {
		case e.Seq == p.seq:
			found = true
			p.p.Event = provenEvent(e)
			// What is no digest proves nothing, as Check then says.
			p.p.Previous, _ = hex.DecodeString(last)
		case e.Subject == p.subject && e.Seq < p.seq:
			last = envelope.ReadHead(e.Headers).Digest
		}
		if isCheckpoint(e.Subject) {
			return p.around(e)
		}
		return nil
	})
	switch {
	case err != nil && !errors.Is(err, errEnough):
		return err
	case !found:
		return notThere(p.seq)
	case p.over.Size == 0:
		return fault.Newf(fault.FailedPrecondition, fault.ReasonIllegalState, "no signed checkpoint covers event %d yet", p.seq)
	}
	p.p.Checkpoint = p.over.Note
	return nil
}

func notThere(seq uint64) error {
	return fault.Newf(fault.NotFound, fault.ReasonEventNotFound, "there is no event %d", seq)
}

// name reads the subject of the event.
func (p *prover) name(ctx context.Context, open Opener) error {
	s, err := open(ctx, p.seq)
	if err != nil {
		return err
	}
	err = Each(ctx, s, func(e *Entry) error {
		if e.Seq == p.seq {
			p.subject = e.Subject
		}
		return errEnough
	})
	switch {
	case err != nil && !errors.Is(err, errEnough):
		return err
	case p.subject == "":
		return notThere(p.seq)
	}
	return nil
}

// around takes a checkpoint that may be used; others prove nothing.
func (p *prover) around(e *Entry) error {
	c, err := OpenEvent(e, p.keys)
	switch {
	case err != nil || c.Size >= e.Seq:
		return nil
	case c.Size < p.seq:
		p.base = c
		return nil
	}
	p.over = c
	return errEnough
}

// path reads what lies between the two checkpoints, and keeps of their tree what leads from the event to the root.
func (p *prover) path(ctx context.Context, open Opener) error {
	nodes, err := proof.Inclusion(p.seq-1, p.over.Size)
	if err != nil {
		return fmt.Errorf("prove event %d: %w", p.seq, err)
	}
	want := make(map[compact.NodeID][]byte, len(nodes.IDs))
	for _, id := range nodes.IDs {
		want[id] = nil
	}
	keep := func(id compact.NodeID, hash []byte) {
		if _, ok := want[id]; ok {
			want[id] = hash
		}
	}
	t, err := treeOf(p.base.Size, p.base.Range)
	if err != nil {
		return fmt.Errorf("prove event %d: %w", p.seq, err)
	}
	for i, id := range compact.RangeNodes(0, p.base.Size, nil) {
		keep(id, t.r.Hashes()[i])
	}
	s, err := open(ctx, p.base.Size+1)
	if err != nil {
		return err
	}
	err = Each(ctx, s, func(e *Entry) error {
		if e.Seq != t.size()+1 {
			return fault.Newf(fault.FailedPrecondition, fault.ReasonAuditDamaged, "event %d is missing", t.size()+1)
		}
		t.add(Leaf(e.Seq, e.Subject, envelope.ReadHead(e.Headers).Digest), keep)
		if t.size() == p.over.Size {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	hashes := make([][]byte, len(nodes.IDs))
	for i, id := range nodes.IDs {
		if hashes[i] = want[id]; hashes[i] == nil {
			return fault.Newf(fault.FailedPrecondition, fault.ReasonAuditDamaged, "events up to %d are missing", p.over.Size)
		}
	}
	if p.p.Path, err = nodes.Rehash(hashes, children); err != nil {
		return fmt.Errorf("prove event %d: %w", p.seq, err)
	}
	return nil
}

// Errors of proofs: what of it does not hold.
var (
	ErrProof     = errors.New("it is no proof")
	ErrContent   = errors.New("the event is not the one that its digest covers")
	ErrInclusion = errors.New("the event is not part of what was signed")
)

// Proven is what a proof shows.
type Proven struct {
	Event      ProvenEvent
	Checkpoint Checkpoint
}

// Check says whether the proof holds under one of the keys: nil, or ErrProof, ErrContent, ErrInclusion or ErrSignature. Without keys the
// signature is not checked.
func (p *Proof) Check(keys Keys) (Proven, error) {
	out := Proven{Event: p.Event}
	if p.Version != proofVersion || p.Event.Sequence == 0 || len(p.Path) > maxPath || len(p.Event.Subject) > maxSubject ||
		(len(p.Previous) != 0 && len(p.Previous) != sha256.Size) {
		return out, ErrProof
	}
	sum, _ := p.Event.head().Chain(nil, p.Previous, p.Event.Body)
	if hex.EncodeToString(sum[:]) != p.Event.Digest || tenantOf(p.Event.Subject) != p.Event.Tenant {
		return out, ErrContent
	}
	c, err := Open(p.Checkpoint, keys)
	if err != nil {
		return out, err
	}
	out.Checkpoint = c
	if p.Event.Sequence > c.Size {
		return out, ErrInclusion
	}
	leaf := Leaf(p.Event.Sequence, p.Event.Subject, p.Event.Digest)
	if err := proof.VerifyInclusion(hasher{rfc6962.DefaultHasher}, p.Event.Sequence-1, c.Size, leaf, p.Path, c.Root); err != nil {
		return out, ErrInclusion
	}
	return out, nil
}

// Encode is the proof as it is handed on.
func (p *Proof) Encode() ([]byte, error) {
	b, err := json.MarshalIndent(p, "", "  ")
	return append(b, '\n'), err
}

// DecodeProof reads what Encode has written; ErrProof of anything else.
func DecodeProof(b []byte) (Proof, error) {
	var p Proof
	if len(b) > MaxProof {
		return p, fmt.Errorf("%w: it has more than %d bytes", ErrProof, MaxProof)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return p, fmt.Errorf("%w: it cannot be read", ErrProof)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return p, fmt.Errorf("%w: something stands behind its end", ErrProof)
	}
	return p, nil
}

// At is when the event was decided; zero where it does not say.
func (p *ProvenEvent) At() time.Time {
	t, err := time.Parse(time.RFC3339Nano, p.Time)
	if err != nil {
		return time.Time{}
	}
	return t
}
