// Package turns shares a few slots among tenants: who has the fewest goes first, and one slot is kept for who has none, so that a tenant that
// asks for everything does not keep another waiting.
package turns

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// ErrFull: as many of a tenant wait already as may.
var ErrFull = errors.New("too many wait for their turn")

// Turns are slots. Make them with New.
type Turns struct {
	slots, share, queue int

	mu    sync.Mutex
	total int
	// tenants are those that have a slot or wait for one.
	tenants map[string]*tenant
	// came counts those that had to wait.
	came uint64
}

type tenant struct {
	running int
	// waiting are in the order in which they came.
	waiting []*waiter
}

type waiter struct {
	came uint64
	turn chan struct{}
}

// New makes slots, at least two, of which one tenant gets at most share, and never the last one while it has another. At most queue calls of one
// tenant wait; 0: any number.
func New(slots, share, queue int) *Turns {
	slots = max(2, slots)
	return &Turns{slots: slots, share: min(max(1, share), slots-1), queue: queue, tenants: map[string]*tenant{}}
}

// Take waits for a tenant's turn. Call done when it is over; further calls do nothing. The error is ErrFull, or that of ctx.
func (t *Turns) Take(ctx context.Context, name string) (done func(), err error) {
	w, err := t.come(name)
	if err != nil {
		return func() {}, err
	}
	done = sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.end(name)
	})
	select {
	case <-w.turn:
		return done, nil
	case <-ctx.Done():
		t.leave(name, w)
		return func() {}, ctx.Err()
	}
}

// come begins to wait. The turn may have come at once.
func (t *Turns) come(name string) (*waiter, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.tenants[name]
	if of == nil {
		of = &tenant{}
		t.tenants[name] = of
	}
	if t.queue > 0 && len(of.waiting) >= t.queue && !t.may(of) {
		return nil, ErrFull
	}
	t.came++
	w := &waiter{came: t.came, turn: make(chan struct{})}
	of.waiting = append(of.waiting, w)
	t.next()
	return w, nil
}

// leave takes a waiter out whose time is over. Its turn may have come at that moment: then it ends.
func (t *Turns) leave(name string, w *waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-w.turn:
		t.end(name)
		return
	default:
	}
	of := t.tenants[name]
	of.waiting = slices.DeleteFunc(of.waiting, func(other *waiter) bool { return other == w })
	t.forget(name, of)
}

// The following need the lock.

func (t *Turns) may(of *tenant) bool {
	return t.total < t.slots && of.running < t.share && (of.running == 0 || t.total < t.slots-1)
}

func (t *Turns) end(name string) {
	of := t.tenants[name]
	t.total--
	of.running--
	t.forget(name, of)
	t.next()
}

func (t *Turns) forget(name string, of *tenant) {
	if of.running == 0 && len(of.waiting) == 0 {
		delete(t.tenants, name)
	}
}

// next gives free slots to those that wait: to the tenant with the fewest first, and among equals to who came first.
func (t *Turns) next() {
	for t.total < t.slots {
		var best *tenant
		for _, of := range t.tenants {
			if len(of.waiting) > 0 && t.may(of) && (best == nil || before(of, best)) {
				best = of
			}
		}
		if best == nil {
			return
		}
		close(best.waiting[0].turn)
		best.waiting = slices.Delete(best.waiting, 0, 1)
		best.running++
		t.total++
	}
}

func before(a, b *tenant) bool {
	if a.running != b.running {
		return a.running < b.running
	}
	return a.waiting[0].came < b.waiting[0].came
}
