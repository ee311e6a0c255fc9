// Package reconcile brings a worker's sandboxes and the log back in line: what the log says lives must live, what it says is
// over must be gone, what nobody asked for is removed, and what is over time is ended. It finds what no command came for:
// deaths, missed ends, work left half done by a process that was killed.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/metering"
	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/sandbox/views"
	"github.com/sandtrail/sandtrail/libs/subject"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/history"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/materialise"
)

// Config of the reconciler.
type Config struct {
	Worker string
	Every  time.Duration
	// SampleEvery is how often the usage of each sandbox is recorded at first; 0 is never.
	SampleEvery time.Duration
	// StartDeadline is how long a create may take, from its request on.
	StartDeadline time.Duration
	// OrphanGrace is how long something that the log does not know is left alone after it was first seen.
	OrphanGrace time.Duration
	// WorkspaceGrace is OrphanGrace for workspaces, which hold data.
	WorkspaceGrace time.Duration
}

// Finder tells whose sandbox an id is.
type Finder interface {
	// Find gives fault.NotFound for one that the log does not know.
	Find(ctx context.Context, filter string) (subject.Aggregate, error)
}

// Execs tells of the execs of a sandbox: whether any has no end in the log, and when the last event of any was recorded, by the log's clock;
// zero: there is none.
type Execs func(ctx context.Context, tenant, id string) (open bool, last time.Time, err error)

// Reconciler of one worker.
type Reconciler struct {
	cfg    Config
	log    *slog.Logger
	events eventlog.Log
	find   Finder
	execs  Execs
	driver runtime.Driver
	role   *materialise.Role
	busy   *materialise.Busy
	live   *views.Set
	now    func() time.Time

	found    atomic.Pointer[look]
	failures atomic.Uint64
	// leads while Run runs.
	leads atomic.Bool
	hints *hints
	// pass keeps passes apart.
	pass sync.Mutex

	// mu guards the maps, which hold only what still exists: when an orphan was first seen, when usage was recorded last, and
	// since when a toolbox does not answer.
	mu      sync.Mutex
	seen    map[string]time.Time
	sampled map[string]time.Time
	silent  map[string]time.Time
}

const (
	// parallel bounds the sandboxes that are put right at once, so that one that cannot be ended does not hold up the others.
	parallel = 8
	// silence is how long a toolbox may not answer before its sandbox counts as lost. A busy host is no death.
	silence = 2 * time.Minute
)

// New makes a reconciler; live must be running.
func New(
	cfg Config, events eventlog.Log, find Finder, execs Execs, driver runtime.Driver, role *materialise.Role, busy *materialise.Busy, live *views.Set,
	log *slog.Logger, now func() time.Time,
) *Reconciler {
	return &Reconciler{
		cfg: cfg, log: log, events: events, find: find, execs: execs, driver: driver, role: role, busy: busy, live: live, now: now, hints: newHints(),
		seen: map[string]time.Time{}, sampled: map[string]time.Time{}, silent: map[string]time.Time{},
	}
}

// look is what a pass found on the host.
type look struct {
	exist, alive int
	at           time.Time
}

func (r *Reconciler) saw(found []runtime.Status) {
	l := &look{exist: len(found), at: r.now()}
	for _, st := range found {
		if st.Alive {
			l.alive++
		}
		if st.Stopped {
			l.exist--
		}
	}
	r.found.Store(l)
}

// Sandboxes is how many exist on this worker, those that are stopped apart, as of the last pass.
func (r *Reconciler) Sandboxes() int {
	exist, _, _ := r.Found()
	return exist
}

// Found is how many sandboxes that are not stopped the last pass found on this worker, how many of them live, and when it looked; the time is zero
// before the first.
func (r *Reconciler) Found() (exist, alive int, at time.Time) {
	l := r.found.Load()
	if l == nil {
		return 0, 0, time.Time{}
	}
	return l.exist, l.alive, l.at
}

// Failures counts the passes that did not put everything right.
func (r *Reconciler) Failures() uint64 { return r.failures.Load() }

// Run makes a pass at once and then every Config.Every until ctx ends, beside it one over the workspaces, and looks at what Notify names
// in between. A pass that fails is logged; the next one tries again. It may be run again after it ended.
func (r *Reconciler) Run(ctx context.Context) error {
	select {
	case <-r.live.Ready():
	case <-ctx.Done():
		return nil
	}
	r.leads.Store(true)
	var beside sync.WaitGroup
	beside.Go(func() { r.follow(ctx) })
	// Of workspaces there are as many as sandboxes ended in a day: no death is to wait for them.
	beside.Go(func() { r.repeat(ctx, r.workspaces) })
	r.repeat(ctx, r.Pass)
	r.leads.Store(false)
	beside.Wait()
	// Whoever reconciles next knows better.
	r.found.Store(nil)
	return nil
}

// repeat does something at once and then every Config.Every until ctx ends.
func (r *Reconciler) repeat(ctx context.Context, do func(context.Context) error) {
	tick := time.NewTicker(r.cfg.Every)
	defer tick.Stop()
	for {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			r.failures.Add(1)
			r.log.Warn("reconciling was incomplete", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Pass looks at every sandbox of this worker once. One that cannot be put right does not keep the others from it.
func (r *Reconciler) Pass(ctx context.Context) error {
	r.pass.Lock()
	defer r.pass.Unlock()
	found, err := r.driver.List(ctx)
	if err != nil {
		return fmt.Errorf("list the sandboxes of this worker: %w", err)
	}
	r.saw(found)
	here := make(map[string]runtime.Status, len(found))
	for _, st := range found {
		here[st.ID] = st
	}
	work := newCrew()
	for _, v := range r.live.All() {
		if v.GetWorker() != r.cfg.Worker {
			continue
		}
		id := v.GetSandboxId()
		st, exists := here[id]
		delete(here, id)
		if r.settled(v, st, exists) {
			continue
		}
		work.do(func() error { return r.attend(ctx, id, func() error { return r.known(ctx, v.GetTenantId(), id) }) })
	}
	for id, st := range here {
		work.do(func() error { return r.attend(ctx, id, func() error { return r.stray(ctx, st) }) })
	}
	err = work.wait()
	r.forget(here)
	return err
}

// crew does things side by side and collects what fails. Once the log did not answer it does no more: each thing would wait for the
// log as long, and the deaths that a pass is to find would stand behind them all.
type crew struct {
	g     errgroup.Group
	mu    sync.Mutex
	errs  []error
	given bool
}

func newCrew() *crew {
	c := &crew{}
	c.g.SetLimit(parallel)
	return c
}

func (c *crew) do(f func() error) {
	if c.gaveUp() {
		return
	}
	c.g.Go(func() error {
		if c.gaveUp() {
			return nil
		}
		if err := f(); err != nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.errs = append(c.errs, err)
			c.given = c.given || fault.Is(err, fault.ReasonLogUnavailable)
		}
		return nil
	})
}

func (c *crew) gaveUp() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.given
}

func (c *crew) wait() error {
	_ = c.g.Wait() // no member returns an error
	return errors.Join(c.errs...)
}

// attend does something unless a command is doing something with the same sandbox.
func (r *Reconciler) attend(ctx context.Context, id string, do func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	free, ok := r.busy.Try(id)
	if !ok {
		return nil
	}
	defer free()
	if err := do(); err != nil {
		return fmt.Errorf("sandbox %s: %w", id, err)
	}
	return nil
}

// settled reports that view and driver agree and nothing is due, so that the log need not be read.
func (r *Reconciler) settled(v *commandsv1.SandboxView, st runtime.Status, exists bool) bool {
	s := sandbox.FromView(v)
	now := r.now()
	switch {
	case s.Expired(now), s.Idle(now):
		return false
	case s.State == sandbox.Ready:
		return exists && st.Alive && !r.sampleDue(s, now)
	case s.State == sandbox.Failed:
		return !exists
	case s.State == sandbox.Destroying, s.State == sandbox.Stopping:
		return false
	case s.State == sandbox.Stopped:
		return true
	default:
		return now.Before(s.OrderedAt.Add(r.cfg.StartDeadline))
	}
}

// known puts a sandbox right that the views have as living here.
func (r *Reconciler) known(ctx context.Context, tenant, id string) error {
	s, err := history.Load(ctx, r.events, tenant, id)
	if err != nil || s.Worker != r.cfg.Worker {
		return err
	}
	now := r.now()
	m := history.Meta{Actor: history.Actor, Cause: ids.Derive("reconcile", id, fmt.Sprint(s.Seq)), Time: now}
	switch {
	case s.State == sandbox.Destroyed:
		return nil
	case s.State == sandbox.Destroying:
		return r.role.Teardown(ctx, s, m)
	case s.Expired(now):
		return r.expire(ctx, s, m)
	case s.State == sandbox.Failed:
		return r.role.Clear(ctx, s)
	case s.Idle(now):
		return r.idle(ctx, s, m)
	case s.State == sandbox.Ready:
		return r.ready(ctx, s, m)
	case s.State == sandbox.Stopped:
		return nil
	case s.State == sandbox.Stopping:
		return r.role.Halt(ctx, s, m)
	case now.Before(s.OrderedAt.Add(r.cfg.StartDeadline)):
		return nil
	}
	return r.role.FailLate(ctx, s, m)
}

func (r *Reconciler) expire(ctx context.Context, s sandbox.Sandbox, m history.Meta) error {
	s, err := history.Record(ctx, r.events, s.Tenant, s.ID, "destroying", m, func(s sandbox.Sandbox) sandbox.Command {
		if !s.Expired(m.Time) {
			return nil
		}
		return sandbox.Destroy{Reason: sandbox.ReasonExpired}
	})
	if err != nil {
		return err
	}
	return r.role.Teardown(ctx, s, m)
}

// ready looks whether a sandbox that should live does, and samples its usage.
func (r *Reconciler) ready(ctx context.Context, s sandbox.Sandbox, m history.Meta) error {
	st, err := r.driver.Inspect(ctx, s.ID)
	if err != nil {
		if r.since(r.silent, s.ID, m.Time) < silence {
			return fmt.Errorf("inspect: %w", err)
		}
		return r.role.Fail(ctx, s, m, fault.ReasonToolboxUnavailable, sandbox.Ready, fmt.Sprintf("its toolbox did not answer for %s", silence))
	}
	r.mu.Lock()
	delete(r.silent, s.ID)
	r.mu.Unlock()
	if !st.Alive {
		reason, message := fault.Reason(st.Reason), st.Message
		if reason == "" {
			reason = fault.ReasonSandboxLost
		}
		if message == "" {
			message = "it ended by itself"
		}
		r.log.Warn("sandbox lost", "tenant", s.Tenant, "sandbox", s.ID, "reason", reason)
		return r.role.Fail(ctx, s, m, reason, sandbox.Ready, message)
	}
	if !r.sampleDue(s, m.Time) {
		return nil
	}
	used, err := r.driver.Stats(ctx, s.ID)
	if err != nil {
		return fmt.Errorf("measure: %w", err)
	}
	_, err = history.Record(ctx, r.events, s.Tenant, s.ID, "sampled", m, func(sandbox.Sandbox) sandbox.Command {
		return sandbox.SampleUsage{At: m.Time, Usage: materialise.Metrics(used)}
	})
	if err == nil {
		r.mu.Lock()
		r.sampled[s.ID] = m.Time
		r.mu.Unlock()
	}
	return err
}

func (r *Reconciler) sampleDue(s sandbox.Sandbox, now time.Time) bool {
	if r.cfg.SampleEvery == 0 || s.State != sandbox.Ready {
		return false
	}
	r.mu.Lock()
	last, ok := r.sampled[s.ID]
	r.mu.Unlock()
	if !ok {
		// After a restart the last sample is in the view's uptime; a sandbox without one counts from its start.
		last = s.RunningSince.Add(max(0, s.Uptime-s.PastUptime))
	}
	// A death loses at most what is between two samples: a twentieth of the usage, or an hour's.
	return now.Sub(last) >= metering.SampleAfter(s.UptimeAt(now), r.cfg.SampleEvery)
}

// stray looks at something on this worker that no view has as living here: it is over, or the view is late, or it is an orphan.
func (r *Reconciler) stray(ctx context.Context, st runtime.Status) error {
	s, err := r.lookup(ctx, st)
	if err != nil {
		return err
	}
	switch {
	case s.Exists() && s.Worker == r.cfg.Worker && !s.Over():
		return nil
	case s.Exists() && s.Worker == r.cfg.Worker:
		r.log.Info("removing what was left of a sandbox that is over", "sandbox", st.ID, "state", s.State)
		return r.role.Clear(ctx, s)
	case !r.old(st.ID, r.cfg.OrphanGrace):
		return nil
	}
	r.log.Warn("removing a sandbox that the log does not know", "sandbox", st.ID, "tenant", st.Tenant)
	_, err = r.driver.Destroy(ctx, st.ID)
	return err
}

// lookup finds the sandbox behind an id; one that the log does not know has no state.
func (r *Reconciler) lookup(ctx context.Context, st runtime.Status) (sandbox.Sandbox, error) {
	agg, err := r.find.Find(ctx, subject.AnyTenantSandbox(st.ID))
	if fault.CodeOf(err) == fault.NotFound {
		return sandbox.Sandbox{}, nil
	}
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return history.Current(ctx, r.events, agg.Tenant, agg.ID)
}

// old reports whether something was first seen at least grace ago.
func (r *Reconciler) old(key string, grace time.Duration) bool {
	return r.since(r.seen, key, r.now()) >= grace
}

// since is how long ago a key was first put into one of the maps; the first time puts it there.
func (r *Reconciler) since(in map[string]time.Time, key string, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	first, ok := in[key]
	if !ok {
		in[key], first = now, now
	}
	return now.Sub(first)
}

// forget drops what is kept about sandboxes that are no longer here.
func (r *Reconciler) forget(strays map[string]runtime.Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.seen {
		if _, ok := strays[key]; !ok && ids.Valid(key) {
			delete(r.seen, key)
		}
	}
	for _, m := range []map[string]time.Time{r.sampled, r.silent} {
		for id := range m {
			if _, ok := r.live.Get(id); !ok {
				delete(m, id)
			}
		}
	}
}
