package keeper

import (
	"cmp"
	"runtime"
	"time"
)

// A sandbox that works without a pause weighs less against the others of its host than one that has something to do now and then.
// What it may have of the CPU is its limit, and it has that as long as nobody else wants it; who is short of CPU should not be the
// one who asks for little.
const (
	// heavyFrom and lightBelow are the shares of its CPU limit, in tenths, from which a sandbox counts as heavy and below which it
	// no longer does.
	heavyFrom, lightBelow = 5, 3
	// heavyShare is what a heavy sandbox's weight is divided by.
	heavyShare = 8
	// weighEvery is between two looks at a sandbox that runs commands or uses CPU without, weighIdle at any other: what a command
	// left behind may begin to work at any time.
	weighEvery = 250 * time.Millisecond
	weighIdle  = 2 * time.Second
	// stirring is the share of its limit, in tenths, below which a sandbox without commands counts as idle.
	stirring = 1
)

// balance keeps the weight of one sandbox.
type balance struct {
	// limit is the CPU time for a second that the sandbox may have.
	limit time.Duration
	// used is what it has used so far; weigh makes it weigh less, or what its limit gives it again.
	used  func() time.Duration
	weigh func(heavy bool) error

	heavy bool
	last  time.Duration
	at    time.Time
}

// look takes a sample at a time, sets the weight where it changes, and says when to look again. An error leaves the weight as it is for
// the next look to change.
func (b *balance) look(now time.Time, busy bool) (next time.Duration, err error) {
	used, since := b.used(), now.Sub(b.at)
	spent := used - b.last
	b.last, b.at = used, now
	allowed := time.Duration(float64(b.limit) * since.Seconds())
	heavy := b.heavy
	switch {
	case since <= 0 || allowed <= 0:
	case spent*10 >= allowed*heavyFrom:
		heavy = true
	case spent*10 < allowed*lightBelow:
		heavy = false
	}
	if heavy != b.heavy {
		if err = b.weigh(heavy); err == nil {
			b.heavy = heavy
		}
	}
	if busy || b.heavy || spent*10 >= allowed*stirring {
		return weighEvery, err
	}
	return weighIdle, err
}

// begin is told of a command in a sandbox that ran none: what the sandbox did not use before says nothing of it. Within a look of the
// last one it changes nothing, or a sandbox could put off the next for ever.
func (b *balance) begin(now time.Time) (next time.Duration) {
	if since := now.Sub(b.at); since < weighEvery {
		return weighEvery - since
	}
	b.last, b.at = b.used(), now
	return weighEvery
}

// balance looks at the sandbox's CPU time until it is gone.
func (k *Keeper) balance() {
	if !k.box.group.Real() {
		return
	}
	limit := cmp.Or(k.spec.CPUMillis, uint32(1000*runtime.NumCPU())) //nolint:gosec // a small number
	b := &balance{limit: time.Duration(limit) * time.Millisecond, used: k.box.group.CPU, at: time.Now()}
	b.weigh = func(heavy bool) error {
		if heavy {
			return k.box.group.Weigh(k.spec.CPUMillis, heavyShare)
		}
		return k.box.group.Weigh(k.spec.CPUMillis, 1)
	}
	b.last = b.used()
	next, failed := weighEvery, false
	for {
		select {
		case <-k.box.gone:
			return
		case <-k.stir:
			next = b.begin(time.Now())
			continue
		case <-time.After(next):
		}
		k.mu.Lock()
		busy := k.running > 0
		k.mu.Unlock()
		var err error
		if next, err = b.look(time.Now(), busy); err != nil && !failed {
			failed = true
			k.log.Warn("the sandbox's weight stays as it is", "error", err)
		}
	}
}
