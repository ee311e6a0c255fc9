// Package pool keeps sandboxes ready that are nobody's yet, so that a create takes one instead of waiting for a start. It decides how
// many there are of which kind; a runtime driver makes, lists and removes them, and makes sure that each is taken once.
package pool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandtrail/sandtrail/libs/runtime"
)

// Class is a kind of sandbox. A warm one serves a create of the same key, and no other.
type Class struct {
	// Key covers everything that cannot be changed once a sandbox runs: its image's digest, limits, workspace, and how the driver
	// starts it.
	Key string `json:"key"`
	// Spec is what is made; ID, Hostname and Env are empty.
	Spec runtime.Spec `json:"spec"`
}

// Item is one warm sandbox.
type Item struct {
	// ID is its own; it never becomes a sandbox's.
	ID    string
	Class Class
	// Ready: its toolbox answers, and nobody has it. Dead: it will never be; neither: somebody is making it or taking it.
	Ready, Dead bool
}

// Source makes warm sandboxes; a driver is one. Every method but Make may be repeated.
type Source interface {
	// Resolve gives the class that a sandbox of this kind has now.
	Resolve(ctx context.Context, spec runtime.Spec) (Class, error)
	// Make returns once the new one is ready. When it fails, nothing is left.
	Make(ctx context.Context, class Class) (id string, err error)
	// Remove ends one that nobody has. An unknown one, or one that was taken, is no error and stays as it is.
	Remove(ctx context.Context, id string) error
	// Warm gives all that nobody has.
	Warm(ctx context.Context) ([]Item, error)
}

// Pool of one worker.
type Pool struct {
	policy Policy
	source Source
	log    *slog.Logger
	now    func() time.Time
	wake   chan struct{}
	// passing keeps passes apart.
	passing sync.Mutex

	mu      sync.Mutex
	classes map[string]*class
	// given were handed out here; a list from before may have them still. broken are not handed out any more, and are removed.
	given, broken map[string]bool
	// begun: there was a pass, so that what is new since was made for a demand that is known.
	begun  bool
	counts counts
}

// New makes a pool that keeps nothing before Run. The policy must be valid.
func New(policy Policy, source Source, log *slog.Logger, now func() time.Time) *Pool {
	return &Pool{
		policy: policy.withDefaults(), source: source, log: log, now: now, wake: make(chan struct{}, 1),
		classes: map[string]*class{}, given: map[string]bool{}, broken: map[string]bool{},
	}
}

// Claim has use take a warm sandbox of the class, and the next one where that fails; use gives an error only for one that nobody can
// take any more. False: there was none. It waits for nothing but use, and counts as a demand either way.
func (p *Pool) Claim(class Class, use func(id string) error) bool {
	if p.policy.Max == 0 {
		return false
	}
	defer p.ring()
	p.demand(class)
	for {
		id, ok := p.next(class.Key)
		if !ok {
			p.count(func(c *counts) { c.misses++ })
			return false
		}
		err := use(id)
		if err == nil {
			p.count(func(c *counts) { c.hits++ })
			return true
		}
		p.log.Warn("a warm sandbox could not be taken", "warm", id, "error", err)
		p.mu.Lock()
		p.broken[id] = true
		p.mu.Unlock()
	}
}

func (p *Pool) ring() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *Pool) demand(want Class) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.class(want).ask(p.now())
}

// class finds or begins a class. Over the bound the one that was not asked for the longest gives way; what it had ready is removed.
func (p *Pool) class(c Class) *class {
	if had := p.classes[c.Key]; had != nil {
		return had
	}
	if len(p.classes) >= maxClasses {
		var oldest *class
		for _, had := range p.classes {
			if oldest == nil || had.asked.Before(oldest.asked) {
				oldest = had
			}
		}
		p.drop(oldest)
	}
	made := &class{Class: c, refill: firstRefill}
	p.classes[c.Key] = made
	return made
}

// drop forgets a class; what it had ready is removed by the next pass.
func (p *Pool) drop(c *class) {
	for _, id := range c.ready {
		p.broken[id] = true
	}
	delete(p.classes, c.Key)
}

func (p *Pool) next(key string) (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.classes[key]
	if c == nil || len(c.ready) == 0 {
		return "", false
	}
	id := c.ready[0]
	c.ready = c.ready[1:]
	p.given[id] = true
	c.took(p.now())
	return id, true
}

const (
	// every is how often a pass is made that nobody asked for.
	every = 5 * time.Second
	// refillers make sandboxes side by side: more would take CPU from those who wait for a cold start.
	refillers = 2
	// makeTimeout bounds one make, of which the image is there.
	makeTimeout = 2 * time.Minute
	// maxClasses bounds what is remembered of demands.
	maxClasses = 64
)

// Run makes passes until ctx ends; what is warm then stays. Only while leads says so does it make or remove any: of several processes
// in front of one cluster one does.
func (p *Pool) Run(ctx context.Context, leads func() bool) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := p.Pass(ctx, leads()); err != nil && ctx.Err() == nil {
			p.log.Warn("the pool of warm sandboxes could not be put right", "error", err)
		}
		select {
		case <-tick.C:
		case <-p.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// Pass looks at what there is and, where lead, removes what is dead, no longer wanted or of a class that has changed, and makes what
// is missing.
func (p *Pool) Pass(ctx context.Context, lead bool) error {
	p.passing.Lock()
	defer p.passing.Unlock()
	items, err := p.source.Warm(ctx)
	if err != nil {
		return fmt.Errorf("list warm sandboxes: %w", err)
	}
	remove := p.observe(items)
	if !lead {
		return nil
	}
	p.pin(ctx)
	p.renew(ctx)
	p.mu.Lock()
	remove = append(remove, p.surplus()...)
	p.mu.Unlock()
	var errs []error
	for _, id := range remove {
		if err := p.source.Remove(ctx, id); err != nil {
			errs = append(errs, fmt.Errorf("remove warm sandbox %s: %w", id, err))
			continue
		}
		p.mu.Lock()
		delete(p.broken, id)
		p.mu.Unlock()
	}
	return errors.Join(append(errs, p.fill(ctx))...)
}

// observe takes what exists for what is ready, and gives what nobody wants.
func (p *Pool) observe(items []Item) (remove []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, before := p.now(), map[string]*class{}
	for _, c := range p.classes {
		for _, id := range c.ready {
			before[id] = c
		}
		c.ready, c.coming = nil, 0
	}
	listed := map[string]bool{}
	for _, item := range items {
		listed[item.ID] = true
		had := before[item.ID]
		delete(before, item.ID)
		switch {
		case item.Dead || p.broken[item.ID] || p.policy.Max == 0:
			remove = append(remove, item.ID)
			continue
		case p.given[item.ID]:
			continue
		case had == nil && p.classes[item.Class.Key] == nil:
			// An earlier process made it, for a demand that is to be met still.
			p.class(item.Class).asked = now
		}
		c := p.class(item.Class)
		if !p.begun {
			c.found, c.foundAt = c.found+1, now
		}
		if item.Ready {
			c.ready = append(c.ready, item.ID)
		} else {
			c.coming++
		}
	}
	for _, c := range before {
		// Another process took it.
		c.ask(now)
		c.took(now)
	}
	p.begun = true
	for _, known := range []map[string]bool{p.given, p.broken} {
		maps.DeleteFunc(known, func(id string, _ bool) bool { return !listed[id] })
	}
	return remove
}

// pin keeps the classes known that the policy names.
func (p *Pool) pin(ctx context.Context) {
	for _, spec := range p.policy.Keep {
		if p.policy.Max == 0 {
			return
		}
		class, err := p.source.Resolve(ctx, spec)
		if err != nil {
			p.log.Warn("a sandbox that is to be kept warm cannot be made", "image", spec.Image, "error", err)
			continue
		}
		p.mu.Lock()
		p.class(class).pinned = true
		p.mu.Unlock()
	}
}

// renew replaces each class that means something else now, such as another image under the same reference, and forgets what nobody has
// asked for.
func (p *Pool) renew(ctx context.Context) {
	p.mu.Lock()
	all := make([]*class, 0, len(p.classes))
	for _, c := range p.classes {
		if c.idle(p.now(), p.policy.Idle) {
			p.drop(c)
			continue
		}
		all = append(all, c)
	}
	p.mu.Unlock()
	for _, c := range all {
		now, err := p.source.Resolve(ctx, c.Spec)
		if err != nil {
			p.log.Warn("a class of warm sandboxes cannot be looked at", "image", c.Spec.Image, "error", err)
			continue
		}
		p.mu.Lock()
		if now.Key != c.Key && p.classes[c.Key] == c {
			p.log.Info("a class of warm sandboxes is replaced", "image", c.Spec.Image, "ready", len(c.ready))
			p.drop(c)
			p.class(now).inherit(c)
		}
		p.mu.Unlock()
	}
}

// surplus takes back what there is too much of, what is broken included. The caller holds mu.
func (p *Pool) surplus() (remove []string) {
	targets := p.targets()
	for key, c := range p.classes {
		for len(c.ready) > 0 && len(c.ready)+c.coming > targets[key] {
			last := len(c.ready) - 1
			p.broken[c.ready[last]] = true
			c.ready = c.ready[:last]
		}
	}
	for id := range p.broken {
		remove = append(remove, id)
	}
	return remove
}

// missing gives a class of which one has to be made, and reserves its place.
func (p *Pool) missing() (*class, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	targets := p.targets()
	for key, c := range p.classes {
		if len(c.ready)+c.coming < targets[key] && !p.now().Before(c.retry) {
			c.coming++
			return c, true
		}
	}
	return nil, false
}

// fill makes what is missing, also what is taken meanwhile.
func (p *Pool) fill(ctx context.Context) error {
	var g errgroup.Group
	for range refillers {
		g.Go(func() error {
			var errs []error
			for ctx.Err() == nil {
				c, ok := p.missing()
				if !ok {
					break
				}
				errs = append(errs, p.make(ctx, c))
			}
			return errors.Join(errs...)
		})
	}
	return g.Wait()
}

func (p *Pool) make(ctx context.Context, c *class) error {
	limited, cancel := context.WithTimeout(ctx, makeTimeout)
	defer cancel()
	id, err := p.source.Make(limited, c.Class)
	p.mu.Lock()
	defer p.mu.Unlock()
	c.coming--
	switch {
	case err != nil && ctx.Err() != nil:
		return nil
	case err != nil:
		p.counts.failures++
		c.fail(p.now())
		return fmt.Errorf("make a warm sandbox of image %s: %w", c.Spec.Image, err)
	case p.classes[c.Key] != c:
		p.broken[id] = true
		return nil
	}
	c.made(p.now())
	c.ready = append(c.ready, id)
	return nil
}
