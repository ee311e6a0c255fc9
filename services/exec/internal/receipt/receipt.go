// Package receipt keeps the receipt of each exec, a commandsv1.ExecView, in bucket exec. It is derived from the log and outlives
// the sandbox.
package receipt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
)

// openMost bounds the execs whose state is remembered; over it all are forgotten, which costs one load each.
const openMost = 4096

// Projection implements projection.Projection.
type Projection struct {
	log eventlog.Log
	kv  jetstream.KeyValue

	mu   sync.Mutex
	open map[subject.Aggregate]known
}

// known is an exec as of the last event that was applied here, and the revision of the receipt that was written of it; 0: none.
type known struct {
	exec     sandbox.Exec
	revision uint64
}

// New makes the projection into the bucket.
func New(log eventlog.Log, kv jetstream.KeyValue) *Projection {
	return &Projection{log: log, kv: kv, open: map[subject.Aggregate]known{}}
}

func (p *Projection) Name() string       { return "exec-receipt" }
func (p *Projection) Version() int       { return 1 }
func (p *Projection) Subjects() []string { return []string{subject.AllExecs()} }

// Key of an exec in the bucket: <tenant>.<sandbox>.<exec>
func Key(agg subject.Aggregate) string { return agg.Tenant + "." + agg.Sandbox + "." + agg.ID }

// Apply writes the receipt as of e. An older event than the receipt's last changes nothing.
func (p *Projection) Apply(ctx context.Context, e envelope.Recorded) error {
	agg, err := subject.ParseEvent(e.Subject)
	if err != nil {
		return fmt.Errorf("receipt: %w", err)
	}
	k, err := p.evolve(ctx, agg, e)
	if err != nil {
		return fmt.Errorf("receipt of exec %s: %w", agg.ID, err)
	}
	if k.revision, err = p.store(ctx, agg, k.exec.View(), k.revision); err != nil {
		return fmt.Errorf("store receipt of exec %s: %w", agg.ID, err)
	}
	p.keep(agg, k)
	return nil
}

// evolve gives the state behind e, from the remembered one where that is the state before e. It is no longer remembered then.
func (p *Projection) evolve(ctx context.Context, agg subject.Aggregate, e envelope.Recorded) (known, error) {
	p.mu.Lock()
	k, ok := p.open[agg]
	delete(p.open, agg)
	p.mu.Unlock()
	var err error
	if ok && k.exec.LastSeq < e.Seq {
		k.exec, err = k.exec.Evolve(e)
		return k, err
	}
	h, err := eventlog.LoadUpTo(ctx, p.log, agg, e.Seq)
	if err != nil {
		return known{}, err
	}
	// Up to e at least; what stands behind it already comes again and changes nothing. An event of a later version is left out: a
	// receipt shows, it does not decide, and one that waited for a newer program would hold up all others.
	x, err := sandbox.ShowExec(h)
	return known{exec: x}, err
}

func (p *Projection) keep(agg subject.Aggregate, k known) {
	if k.exec.Over() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.open) >= openMost {
		clear(p.open)
	}
	p.open[agg] = k
}

// Heal makes each receipt what the log says, and removes those of execs that the log does not know.
func (p *Projection) Heal(ctx context.Context) error {
	p.mu.Lock()
	clear(p.open)
	p.mu.Unlock()
	lister, err := p.kv.ListKeys(ctx)
	if err != nil {
		return fmt.Errorf("list the receipts: %w", err)
	}
	defer lister.Stop() //nolint:errcheck // it has ended or its error is that of a key
	for key := range lister.Keys() {
		parts := strings.Split(key, ".")
		if len(parts) != 3 {
			continue
		}
		if err := p.heal(ctx, key, subject.Exec(parts[0], parts[1], parts[2])); err != nil {
			return fmt.Errorf("receipt %s: %w", key, err)
		}
	}
	return ctx.Err()
}

func (p *Projection) heal(ctx context.Context, key string, agg subject.Aggregate) error {
	entry, err := p.kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	h, err := eventlog.Current(ctx, p.log, agg)
	if err != nil {
		return err
	}
	x, err := sandbox.ShowExec(h)
	if err != nil {
		return err
	}
	if !x.Exists() {
		err = p.kv.Delete(ctx, key, jetstream.LastRevision(entry.Revision()))
	} else if old := (&commandsv1.ExecView{}); proto.Unmarshal(entry.Value(), old) != nil || old.GetLastSequence() != x.LastSeq || !bytes.Equal(old.GetDigest(), x.Digest) {
		var data []byte
		if data, err = proto.Marshal(x.View()); err != nil {
			return err
		}
		_, err = p.kv.Update(ctx, key, data, entry.Revision())
	}
	if errors.Is(err, jetstream.ErrKeyRevisionMismatch) || errors.Is(err, jetstream.ErrKeyExists) {
		return nil // somebody else, who reads the same log, was faster
	}
	return err
}

// storeAttempts bounds how often a receipt is written against somebody else who writes it too.
const storeAttempts = 8

// store puts the view unless a newer one is there, and returns its revision; 0 where somebody else's stands. Several writers may
// do so at once. What stands there is only read when the revision is not the expected one: an exec's receipt has one writer nearly always.
func (p *Projection) store(ctx context.Context, agg subject.Aggregate, v *commandsv1.ExecView, revision uint64) (uint64, error) {
	data, err := proto.Marshal(v)
	if err != nil {
		return 0, err
	}
	key := Key(agg)
	for range storeAttempts {
		var put uint64
		if put, err = p.put(ctx, key, data, revision); err == nil || !errors.Is(err, errMoved) {
			return put, err
		}
		have, getErr := p.kv.Get(ctx, key)
		if errors.Is(getErr, jetstream.ErrKeyNotFound) {
			revision = 0
			continue
		}
		if getErr != nil {
			return 0, getErr
		}
		old := &commandsv1.ExecView{}
		if proto.Unmarshal(have.Value(), old) == nil && old.GetLastSequence() >= v.GetLastSequence() {
			return 0, nil
		}
		revision = have.Revision()
	}
	return 0, err
}

// errMoved: what stands there is not what was expected.
var errMoved = errors.New("the receipt was written by somebody else")

func (p *Projection) put(ctx context.Context, key string, data []byte, revision uint64) (put uint64, err error) {
	if revision == 0 {
		put, err = p.kv.Create(ctx, key, data)
	} else {
		put, err = p.kv.Update(ctx, key, data, revision)
	}
	if errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
		err = errors.Join(errMoved, err)
	}
	return put, err
}
