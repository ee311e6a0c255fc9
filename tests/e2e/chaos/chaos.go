// Package chaos loads a whole Sandtrail while its parts fail, and judges afterwards by everything that was left behind whether anything was
// lost, done twice or leaked.
package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/check"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/fault"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/load"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/rig"
)

// Options of a run.
type Options struct {
	Seed     uint64
	Form     rig.Form
	Replicas int
	// Creates, Execs and Faults are how many of each there are at least.
	Creates, Execs, Faults int
	// Duration ends the run early.
	Duration time.Duration
	// Lanes is how many faults there may be at once, Lives how many sandboxes.
	Lanes, Lives int
	// Pause is how long on average a client waits before each create and exec, Rest how long a lane does before its next fault, and
	// AppendPause what each of the clients waits that append against each other; 0 is the default of AppendPause, and none of the others.
	Pause, Rest, AppendPause time.Duration
	// Enough lets the load end once all the numbers are reached; nil always does.
	Enough func() bool
	// Watch runs beside the load until its context ends; may be nil.
	Watch func(context.Context, *rig.Rig, *load.Counts) error
	// Only these kinds of faults, by name or the beginning of it; all where it is empty.
	Only []string
	// Clocks gives services and NATS servers wall clocks of their own, which may jump.
	Clocks bool
	// Out is a directory for journal, evidence and summary; it is made.
	Out string
	// Say gets lines for people.
	Say func(format string, args ...any)
}

const (
	tenants = 3
	clients = 4
	// perTenant is few enough to be met now and then, maxSandboxes is not.
	perTenant    = 4
	maxSandboxes = 64
)

// run is a run under way.
type run struct {
	Options
	rig     *rig.Rig
	journal *journal.Journal
	load    *load.Load
	menu    *fault.Menu
	summary *Summary
	made    atomic.Int64

	observer *observer

	mu   sync.Mutex
	busy map[string]bool
}

// Run makes one run. An error is one of the harness; what the system did wrong is in the summary.
func Run(ctx context.Context, o Options) (_ *Summary, err error) {
	o.Say("seed %d", o.Seed)
	if err := os.MkdirAll(o.Out, 0o700); err != nil {
		return nil, err
	}
	r := &run{Options: o, busy: map[string]bool{}, summary: newSummary(o), observer: newObserver()}
	if r.journal, err = journal.Start(o.Out, o.Seed); err != nil {
		return nil, err
	}
	bin, err := rig.Build(ctx)
	if err != nil {
		return nil, err
	}
	state, err := os.MkdirTemp("", "st-chaos-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err == nil && r.summary.OK() {
			err = os.RemoveAll(state)
			return
		}
		o.Say("logs of the processes are in %s", state)
	}()
	r.rig, err = rig.Start(ctx, rig.Options{
		Bin: bin, Clocks: o.Clocks, State: filepath.Join(state, "s"), Form: o.Form, Replicas: o.Replicas, Clients: clients, MaxSandboxes: maxSandboxes,
		MaxPerTenant: perTenant, Sandboxes: sandboxes(o), Say: o.Say,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.rig.Stop()) }()
	if err := r.work(ctx); err != nil {
		return nil, err
	}
	if err := r.judge(ctx); err != nil {
		return nil, err
	}
	return r.summary, r.journal.Close()
}

// work loads the system and makes its parts fail, and returns once everything is healed and what was made is destroyed.
func (r *run) work(ctx context.Context) error {
	var err error
	if r.menu, err = fault.NewMenu(r.rig, r.Only); err != nil {
		return err
	}
	var addrs []string
	for i := range clients {
		addrs = append(addrs, r.rig.ClientAddr(i))
	}
	r.load, err = load.New(load.Options{
		Seed: r.Seed, Creates: r.Creates, Execs: r.Execs, Lives: r.Lives, Tenants: tenants, Addrs: addrs, Journal: r.journal,
		Enough: func() bool { return r.made.Load() >= int64(r.Faults) && (r.Enough == nil || r.Enough()) }, Pause: r.Pause,
	})
	if err != nil {
		return err
	}
	first, err := load.NewProbe(r.Seed, "first", r.rig.GRPC, r.journal)
	if err != nil {
		return err
	}
	if err := first.Works(ctx); err != nil {
		return fmt.Errorf("it does not work before anything has failed: %w", err)
	}
	r.Say("loading: %d creates, %d execs, %d faults of %v", r.Creates, r.Execs, r.Faults, r.menu.Kinds())
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, r.Duration)
	defer cancel()
	working, stop := context.WithCancel(limited)
	var lanes sync.WaitGroup
	for i := range r.Lanes {
		lanes.Go(func() { r.lane(working, i) })
	}
	lanes.Go(func() { r.observer.sample(working, r.rig) })
	lanes.Go(func() {
		if err := r.observer.append(working, r.rig, cmp.Or(r.AppendPause, appendPause)); err != nil {
			r.summary.broken(err.Error())
		}
	})
	if r.Watch != nil {
		lanes.Go(func() {
			if err := r.Watch(working, r.rig, &r.load.Counts); err != nil {
				r.summary.broken(err.Error())
			}
		})
	}
	progress := r.report(ctx)
	r.load.Run(working)
	stop()
	lanes.Wait()
	progress()
	r.summary.Loaded = time.Since(began)
	if err := first.Works(ctx); err != nil {
		r.summary.broken(fmt.Sprintf("it does not work once everything is healed: %v", err))
	}
	return first.Close(ctx)
}

// sandboxes bounds how many a run makes: what was asked for, and one or two with each fault to see whether the system works again.
func sandboxes(o Options) int { return max(2000, 2*o.Creates+2*o.Faults) }

// report says now and then how far the run is, until it is told to stop.
func (r *run) report(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(10 * time.Second)
		defer tick.Stop()
		began := time.Now()
		for {
			select {
			case <-tick.C:
				r.Say("%s  %s, %d faults", time.Since(began).Round(time.Second), &r.load.Counts, r.made.Load())
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { cancel(); <-done }
}

// lane makes one fault after the other, each healed and recovered from before the next.
func (r *run) lane(ctx context.Context, n int) {
	probe, err := load.NewProbe(r.Seed, fmt.Sprintf("lane%d", n), r.rig.GRPC, r.journal)
	if err != nil {
		r.summary.broken(err.Error())
		return
	}
	defer func() {
		if err := probe.Close(context.WithoutCancel(ctx)); err != nil {
			r.summary.broken(fmt.Sprintf("a probe's sandbox was not destroyed: %v", err))
		}
	}()
	random := rand.New(rand.NewPCG(r.Seed, uint64(n))) //nolint:gosec // to be made again
	for ctx.Err() == nil && r.made.Add(1) <= int64(r.Faults) {
		f, ok := r.pick(random)
		if !ok {
			r.made.Add(-1)
			if pause.For(ctx, 100*time.Millisecond) != nil {
				return
			}
			continue
		}
		r.fail(ctx, f, probe)
		r.mu.Lock()
		delete(r.busy, f.Target)
		r.mu.Unlock()
		_ = pause.For(ctx, r.Rest+time.Duration(random.IntN(500))*time.Millisecond)
	}
}

func (r *run) pick(random *rand.Rand) (fault.Fault, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, ok := r.menu.Pick(random, func(target string) bool { return r.busy[target] })
	if ok {
		r.busy[f.Target] = true
	}
	return f, ok
}

// recovery bounds the wait for the system to work again.
const recovery = time.Minute

// fail makes one fault, heals it, and measures how long it takes until the system works again.
func (r *run) fail(ctx context.Context, f fault.Fault, probe *load.Probe) {
	r.observer.fault(f)
	if err := f.Inject(ctx); err != nil {
		r.Say("not injected: %v", err)
	} else {
		_ = pause.For(ctx, f.Hold)
	}
	// Healed also when the run is over.
	if err := f.Heal(context.WithoutCancel(ctx)); err != nil {
		r.summary.broken(err.Error())
	}
	healed := time.Now()
	limit, cancel := context.WithTimeout(ctx, recovery)
	defer cancel()
	err := probe.Works(limit)
	if ctx.Err() != nil {
		return
	}
	took := time.Since(healed)
	if err != nil {
		r.summary.broken(fmt.Sprintf("%s after %s it does not work again: %v", recovery, f, err))
	}
	r.summary.fault(f.Kind, took)
	if took > 5*time.Second {
		r.Say("%s after %s until it worked again", took.Round(time.Millisecond), f)
	}
}

// judge collects what is left and checks it.
func (r *run) judge(ctx context.Context) error {
	for _, p := range r.rig.Processes() {
		for _, c := range p.Crashes() {
			r.summary.Ends = append(r.summary.Ends, p.Name+": "+c)
		}
	}
	for _, what := range r.load.GaveUp() {
		r.summary.broken("it never came to an end: " + what)
	}
	r.summary.Counts = r.load.String()
	r.Say("collecting what is left")
	e, err := r.collect(ctx)
	if err != nil {
		return err
	}
	r.Say("judging")
	h := r.journal.History()
	r.summary.Summary = check.Summarize(h, e, check.All(h, e), r.summary.recoveries)
	return r.summary.write(r.Out)
}
