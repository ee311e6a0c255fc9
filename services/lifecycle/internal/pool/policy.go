package pool

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sandtrail/sandtrail/libs/runtime"
)

// Policy says how many sandboxes are kept warm. The zero value keeps none.
type Policy struct {
	// Max of all classes together; 0: no pool, and what an earlier one left is removed. Min of each class that was asked for lately.
	Max, Min int
	// HitRate is the part of creates that is to find a warm one, over 0 and under 1: 0.9. Between Min and Max the number follows it.
	HitRate float64
	// Idle is how long a class is kept that nobody asks for: 10 min.
	Idle time.Duration
	// Keep are the kinds that are kept also before anybody has asked.
	Keep []runtime.Spec
}

const (
	defaultHitRate = 0.9
	defaultIdle    = 10 * time.Minute
	// MaxWarm bounds Policy.Max: each has a sentry and a keeper with some tens of MiB together.
	MaxWarm = 256
)

func (p Policy) withDefaults() Policy {
	if p.HitRate == 0 {
		p.HitRate = defaultHitRate
	}
	if p.Idle == 0 {
		p.Idle = defaultIdle
	}
	return p
}

// Validate reports every mistake at once.
func (p Policy) Validate() error {
	p = p.withDefaults()
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(p.Max >= 0 && p.Max <= MaxWarm, "warm max: %d is not between 0 and %d", p.Max, MaxWarm)
	check(p.Min >= 0 && p.Min <= p.Max, "warm min: %d is not between 0 and the maximum", p.Min)
	check(p.HitRate > 0 && p.HitRate < 1, "warm hit rate: %g is not between 0 and 1", p.HitRate)
	check(p.Idle >= time.Second, "warm idle: %s is under a second", p.Idle)
	check(len(p.Keep) == 0 || p.Max > 0, "warm images: they need a warm max")
	check(len(p.Keep) <= maxClasses/2, "warm images: more than %d", maxClasses/2)
	return errors.Join(errs...)
}

const (
	// remembered is how many demands of a class the number of warm ones follows.
	remembered = 64
	// firstRefill stands for the time of a refill that was never seen, maxRefill bounds it.
	firstRefill = 2 * time.Second
	maxRefill   = 5 * time.Minute
	// firstRetry is the pause behind a make that failed; each further one is twice as long.
	firstRetry = 5 * time.Second
	lastRetry  = 5 * time.Minute
)

// class is what is known of one kind. The pool's mutex guards it.
type class struct {
	Class
	pinned bool
	// ready may be taken, oldest first; coming are being made.
	ready  []string
	coming int
	// asked is when it was last wanted, asks are the last times of it, bursts how many were wanted within one refill at each of them.
	asked  time.Time
	asks   []time.Time
	bursts []int
	// owed is when those went that are not replaced yet; refill is how long that takes.
	owed   []time.Time
	refill time.Duration
	// found are those that earlier processes left; they stay for a while as if they were wanted.
	found   int
	foundAt time.Time
	// fails in a row, and when the next make may be tried.
	fails int
	retry time.Time
}

// ask notes a demand.
func (c *class) ask(now time.Time) {
	c.asked = now
	c.asks = last(append(c.asks, now))
	burst := 0
	for _, at := range c.asks {
		if now.Sub(at) < c.refill {
			burst++
		}
	}
	c.bursts = last(append(c.bursts, burst))
}

// took notes that one has gone and is to be replaced.
func (c *class) took(now time.Time) { c.owed = last(append(c.owed, now)) }

func last[T any](all []T) []T { return slices.Clone(all[max(0, len(all)-remembered):]) }

// made notes that one more is ready.
func (c *class) made(now time.Time) {
	c.fails, c.retry = 0, time.Time{}
	if len(c.owed) == 0 {
		return
	}
	took := min(now.Sub(c.owed[0]), maxRefill)
	c.owed = c.owed[1:]
	c.refill = (3*c.refill + took) / 4
}

func (c *class) fail(now time.Time) {
	c.retry = now.Add(min(firstRetry<<min(c.fails, 10), lastRetry))
	c.fails++
}

// idle: nobody has asked for it for a while.
func (c *class) idle(now time.Time, after time.Duration) bool {
	return !c.pinned && now.Sub(c.asked) > after
}

// inherit takes over what was wanted of a class that this one replaces.
func (c *class) inherit(of *class) {
	c.pinned = c.pinned || of.pinned
	if of.asked.After(c.asked) {
		c.asked, c.asks, c.bursts, c.refill = of.asked, of.asks, of.bursts, of.refill
		c.found, c.foundAt = of.found, of.foundAt
	}
}

// want is how many would have served the wanted part of the last demands: one demand is served where no more than that many came
// within the time of a refill.
func (c *class) want(p Policy, now time.Time) int {
	if c.idle(now, p.Idle) {
		return 0
	}
	if !c.pinned && len(c.asks) < 2 && c.found == 0 {
		// What was wanted once may be wanted never again.
		return 0
	}
	want := p.Min
	if n := len(c.bursts); n > 0 {
		sorted := slices.Sorted(slices.Values(c.bursts))
		want = max(want, sorted[min(n-1, int(float64(n)*p.HitRate))])
	}
	if now.Sub(c.foundAt) < p.Idle {
		want = max(want, c.found)
	}
	return want
}

// targets shares the maximum out: the minimum of each class first, then what each wants, in the order of the last demand. The caller
// holds mu.
func (p *Pool) targets() map[string]int {
	now, left := p.now(), p.policy.Max
	all := make([]*class, 0, len(p.classes))
	for _, c := range p.classes {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *class) int { return b.asked.Compare(a.asked) })
	targets := map[string]int{}
	for _, share := range []func(int) int{func(want int) int { return min(want, p.policy.Min) }, func(want int) int { return want }} {
		for _, c := range all {
			more := min(left, share(c.want(p.policy, now))-targets[c.Key])
			targets[c.Key] += more
			left -= more
		}
	}
	return targets
}
