// Package view keeps the current view of each sandbox in KV bucket sandbox, projected from the log. Several processes may run
// it at the same time: a view is only ever replaced by a later one.
package view

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// known bounds the states kept in memory; one that is not there is loaded from the log.
const known = 4096

// Projection implements projection.Projection.
type Projection struct {
	kv     jetstream.KeyValue
	events eventlog.Log
	log    *slog.Logger
	states map[string]sandbox.Sandbox
	// last is the sequence of the event applied last: one that is not behind it starts a replay.
	last uint64
}

// New projects into the bucket sandbox.
func New(ctx context.Context, js jetstream.JetStream, events eventlog.Log, log *slog.Logger) (*Projection, error) {
	kv, err := js.KeyValue(ctx, topology.BucketSandbox)
	if err != nil {
		return nil, fmt.Errorf("open the bucket of sandboxes: %w", err)
	}
	return &Projection{kv: kv, events: events, log: log, states: map[string]sandbox.Sandbox{}}, nil
}

// Name of the projection.
func (p *Projection) Name() string { return "sandbox-view" }

// Clear removes every view, before all are built again.
func Clear(ctx context.Context, js jetstream.JetStream) error {
	s, err := js.Stream(ctx, subject.BucketStream(topology.BucketSandbox))
	if err != nil {
		return fmt.Errorf("open the bucket of sandboxes: %w", err)
	}
	if err := s.Purge(ctx); err != nil {
		return fmt.Errorf("remove the views of sandboxes: %w", err)
	}
	return nil
}

// Version of what a view means.
func (p *Projection) Version() int { return 1 }

// Subjects of the events it reads.
func (p *Projection) Subjects() []string {
	return []string{subject.AllSandboxes(), subject.AllWorkspaces()}
}

// Apply brings the view of the event's sandbox up to it. It may be repeated, and events may come that a view has already.
func (p *Projection) Apply(ctx context.Context, e envelope.Recorded) error {
	agg, err := subject.ParseEvent(e.Subject)
	if err != nil {
		return err
	}
	if agg.Kind == subject.KindWorkspace {
		return p.workspace(ctx, agg, e)
	}
	if e.Seq <= p.last {
		// What was stored may be gone: nothing that is remembered about it holds.
		clear(p.states)
	}
	p.last = e.Seq
	s, ok := p.states[agg.ID]
	if ok && e.Seq <= s.Seq {
		return nil
	}
	if ok {
		s, err = s.Evolve(e)
	}
	if !ok || err != nil {
		if s, err = p.load(ctx, agg, e); err != nil {
			return err
		}
	}
	view := s.View()
	if err := p.put(ctx, key(agg), func(old *commandsv1.SandboxView) *commandsv1.SandboxView {
		view.WorkspaceDeletedAt = old.GetWorkspaceDeletedAt()
		// An equal sequence with another content comes from another version of this program.
		if old.GetSequence() > view.GetSequence() || proto.Equal(old, view) {
			return nil
		}
		return view
	}); err != nil {
		return err
	}
	p.remember(s)
	return nil
}

// load folds the history up to e at least.
func (p *Projection) load(ctx context.Context, agg subject.Aggregate, e envelope.Recorded) (sandbox.Sandbox, error) {
	h, err := eventlog.LoadUpTo(ctx, p.events, agg, e.Seq)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	s := p.shown(agg, h)
	s.Seq = max(s.Seq, e.Seq)
	return s, nil
}

// present folds all that the log has.
func (p *Projection) present(ctx context.Context, agg subject.Aggregate) (sandbox.Sandbox, error) {
	h, err := eventlog.Current(ctx, p.events, agg)
	return p.shown(agg, h), err
}

// shown leaves out what it cannot understand: a view shows, it does not decide.
func (p *Projection) shown(agg subject.Aggregate, h eventlog.History) sandbox.Sandbox {
	s := sandbox.Sandbox{ID: agg.ID, Tenant: agg.Tenant}
	for _, r := range h.Events {
		next, err := s.Evolve(r)
		switch {
		case err == nil:
			s = next
		case !fault.Is(err, fault.ReasonUnknownEvent):
			p.log.Error("an impossible event was left out of a view", "subject", r.Subject, "sequence", r.Seq, "error", err)
		}
	}
	return s
}

// Heal makes each view what the log says, and removes those of sandboxes that the log does not know.
func (p *Projection) Heal(ctx context.Context) error {
	clear(p.states)
	p.last = 0
	lister, err := p.kv.ListKeys(ctx)
	if err != nil {
		return fmt.Errorf("list the views: %w", err)
	}
	defer lister.Stop() //nolint:errcheck // it has ended or its error is that of a key
	for key := range lister.Keys() {
		tenant, id, ok := strings.Cut(key, ".")
		if !ok {
			continue
		}
		if err := p.heal(ctx, key, subject.Sandbox(tenant, id)); err != nil {
			return fmt.Errorf("view %s: %w", key, err)
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
	s, err := p.present(ctx, agg)
	if err != nil {
		return err
	}
	if !s.Exists() {
		p.log.Warn("a view was of a sandbox that the log has lost", "tenant", agg.Tenant, "sandbox", agg.ID)
		return moved(p.kv.Delete(ctx, key, jetstream.LastRevision(entry.Revision())))
	}
	view := s.View()
	if view.WorkspaceDeletedAt, err = p.workspaceDeleted(ctx, agg); err != nil {
		return err
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(view)
	if err != nil || bytes.Equal(data, entry.Value()) {
		return err
	}
	_, err = p.kv.Update(ctx, key, data, entry.Revision())
	return moved(err)
}

// workspaceDeleted is when a workspace was removed, nil where the log does not say so.
func (p *Projection) workspaceDeleted(ctx context.Context, agg subject.Aggregate) (*timestamppb.Timestamp, error) {
	h, err := eventlog.Current(ctx, p.events, subject.Workspace(agg.Tenant, agg.ID))
	if err != nil {
		return nil, err
	}
	for _, e := range h.Events {
		if _, gone := e.Body.(*eventsv1.WorkspaceDeleted); gone {
			return timestamppb.New(e.Time), nil
		}
	}
	return nil, nil
}

// moved leaves out that somebody else, who reads the same log, was faster.
func moved(err error) error {
	if errors.Is(err, jetstream.ErrKeyRevisionMismatch) || errors.Is(err, jetstream.ErrKeyExists) {
		return nil
	}
	return err
}

func (p *Projection) remember(s sandbox.Sandbox) {
	if _, ok := p.states[s.ID]; !ok && len(p.states) >= known {
		for id := range p.states {
			delete(p.states, id)
			break
		}
	}
	p.states[s.ID] = s
}

func (p *Projection) workspace(ctx context.Context, agg subject.Aggregate, e envelope.Recorded) error {
	if _, gone := e.Body.(*eventsv1.WorkspaceDeleted); !gone {
		return nil
	}
	return p.put(ctx, key(agg), func(old *commandsv1.SandboxView) *commandsv1.SandboxView {
		if old.GetSequence() == 0 || old.GetWorkspaceDeletedAt() != nil {
			return nil
		}
		old.WorkspaceDeletedAt = timestamppb.New(e.Time)
		return old
	})
}

func key(agg subject.Aggregate) string { return agg.Tenant + "." + agg.ID }

// putAttempts bounds the races lost against other processes before the event is applied again.
const putAttempts = 10

// put replaces an entry by what change makes of it; nil leaves it as it is. The entry that change gets is empty where there is
// none.
func (p *Projection) put(ctx context.Context, key string, change func(*commandsv1.SandboxView) *commandsv1.SandboxView) error {
	var err error
	for range putAttempts {
		old := &commandsv1.SandboxView{}
		var revision uint64
		e, got := p.kv.Get(ctx, key)
		switch {
		case errors.Is(got, jetstream.ErrKeyNotFound):
		case got != nil:
			return fmt.Errorf("read the view %s: %w", key, got)
		default:
			revision = e.Revision()
			if err := proto.Unmarshal(e.Value(), old); err != nil {
				// A view that cannot be read is worth nothing and is made again.
				old = &commandsv1.SandboxView{}
			}
		}
		next := change(old)
		if next == nil {
			return nil
		}
		data, failed := proto.MarshalOptions{Deterministic: true}.Marshal(next)
		if failed != nil {
			return fmt.Errorf("encode the view %s: %w", key, failed)
		}
		if revision == 0 {
			_, err = p.kv.Create(ctx, key, data)
		} else {
			_, err = p.kv.Update(ctx, key, data, revision)
		}
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("store the view %s: %w", key, err)
}
