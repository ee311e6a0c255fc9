// Package receipt keeps the receipt of each exec, a commandsv1.ExecView, in bucket exec. It is derived from the log and outlives
// the sandbox.
package receipt

import (
	"context"
	"errors"
	"fmt"
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
	open map[subject.Aggregate]sandbox.Exec
}

// New makes the projection into the bucket.
func New(log eventlog.Log, kv jetstream.KeyValue) *Projection {
	return &Projection{log: log, kv: kv, open: map[subject.Aggregate]sandbox.Exec{}}
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
	x, err := p.evolve(ctx, agg, e)
	if err != nil {
		return fmt.Errorf("receipt of exec %s: %w", agg.ID, err)
	}
	if err := p.store(ctx, agg, x.View()); err != nil {
		p.forget(agg)
		return fmt.Errorf("store receipt of exec %s: %w", agg.ID, err)
	}
	return nil
}

// evolve gives the state behind e, from the remembered one where that is the state before e.
func (p *Projection) evolve(ctx context.Context, agg subject.Aggregate, e envelope.Recorded) (sandbox.Exec, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x, known := p.open[agg]
	delete(p.open, agg)
	if known && x.LastSeq < e.Seq {
		next, err := x.Evolve(e)
		if err != nil {
			return x, err
		}
		p.keep(agg, next)
		return next, nil
	}
	h, err := p.log.Load(ctx, agg)
	if err != nil {
		return x, err
	}
	// Up to e at least; what stands behind it already comes again and changes nothing. An event of a later version is left out: a
	// receipt shows, it does not decide, and one that waited for a newer program would hold up all others.
	if x, err = sandbox.ShowExec(h); err == nil {
		p.keep(agg, x)
	}
	return x, err
}

func (p *Projection) keep(agg subject.Aggregate, x sandbox.Exec) {
	if x.Over() {
		return
	}
	if len(p.open) >= openMost {
		clear(p.open)
	}
	p.open[agg] = x
}

func (p *Projection) forget(agg subject.Aggregate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, agg)
}

// storeAttempts bounds how often a receipt is written against somebody else who writes it too.
const storeAttempts = 8

// store puts the view unless a newer one is there. Several writers may do so at once.
func (p *Projection) store(ctx context.Context, agg subject.Aggregate, v *commandsv1.ExecView) error {
	data, err := proto.Marshal(v)
	if err != nil {
		return err
	}
	for range storeAttempts {
		if err = p.put(ctx, Key(agg), data, v.GetLastSequence()); err == nil || !errors.Is(err, errMoved) {
			return err
		}
	}
	return err
}

// errMoved: somebody else wrote in between.
var errMoved = errors.New("the receipt was written by somebody else")

func (p *Projection) put(ctx context.Context, key string, data []byte, seq uint64) error {
	have, err := p.kv.Get(ctx, key)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		_, err = p.kv.Create(ctx, key, data)
	case err != nil:
	default:
		old := &commandsv1.ExecView{}
		if proto.Unmarshal(have.Value(), old) == nil && old.GetLastSequence() >= seq {
			return nil
		}
		_, err = p.kv.Update(ctx, key, data, have.Revision())
	}
	if errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
		return errors.Join(errMoved, err)
	}
	return err
}
