// Package fault is what can be made to fail in a rig: each fault is a value with a name, an injection and a healing, and the same random
// source makes the same choices.
package fault

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/rig"
)

// Fault is one fault that is to be made.
type Fault struct {
	// Kind says what happens, Target to what.
	Kind, Target string
	// Hold is how long it lasts.
	Hold time.Duration

	inject func(context.Context) error
	heal   func(context.Context) error
}

func (f Fault) String() string { return fmt.Sprintf("%s %s for %s", f.Kind, f.Target, f.Hold) }

// Inject makes it happen.
func (f Fault) Inject(ctx context.Context) error {
	if err := f.inject(ctx); err != nil {
		return fmt.Errorf("%s %s: %w", f.Kind, f.Target, err)
	}
	return nil
}

// Heal ends it: the part may work again from now on. Healing must be tried also when the injection failed.
func (f Fault) Heal(ctx context.Context) error {
	if f.heal == nil {
		return nil
	}
	if err := f.heal(ctx); err != nil {
		return fmt.Errorf("heal %s %s: %w", f.Kind, f.Target, err)
	}
	return nil
}

// kind makes faults of one kind. ok is false where the rig has nothing that it could be done to now.
type kind struct {
	name string
	// share is how often it comes among the others.
	share int
	pick  func(*rig.Rig, *rand.Rand) (f Fault, ok bool)
}

// Menu are the kinds that a rig offers.
type Menu struct {
	rig   *rig.Rig
	kinds []kind
}

// NewMenu offers every kind that the rig's form has, or of them only those that only names, by whole name or by its beginning up to a dash.
// An unknown name is an error.
func NewMenu(r *rig.Rig, only []string) (*Menu, error) {
	m := &Menu{rig: r}
	all := slices.Concat(kills(r), pauses(r), links(r), disks(r), clusters(r), clocks(r))
	for _, k := range all {
		if len(only) == 0 || slices.ContainsFunc(only, func(o string) bool { return k.name == o || strings.HasPrefix(k.name, o+"-") }) {
			m.kinds = append(m.kinds, k)
		}
	}
	for _, o := range only {
		if !slices.ContainsFunc(all, func(k kind) bool { return k.name == o || strings.HasPrefix(k.name, o+"-") }) {
			return nil, fmt.Errorf("there is no fault %q here: there are %s", o, strings.Join(names(all), ", "))
		}
	}
	return m, nil
}

func names(kinds []kind) []string {
	var all []string
	for _, k := range kinds {
		all = append(all, k.name)
	}
	return all
}

// Kinds are the names of what it offers.
func (m *Menu) Kinds() []string { return names(m.kinds) }

// Pick chooses a fault; ok is false where there is nothing to choose from now. Targets that busy holds are left out: something happens to
// them already.
func (m *Menu) Pick(r *rand.Rand, busy func(target string) bool) (f Fault, ok bool) {
	total := 0
	for _, k := range m.kinds {
		total += k.share
	}
	if total == 0 {
		return f, false
	}
	for range 20 {
		n := r.IntN(total)
		for _, k := range m.kinds {
			if n -= k.share; n >= 0 {
				continue
			}
			if f, ok := k.pick(m.rig, r); ok && !busy(f.Target) {
				f.Kind = k.name
				return f, true
			}
			break
		}
	}
	return f, false
}

// between gives a duration in [from, to), the shorter the more likely.
func between(r *rand.Rand, from, to time.Duration) time.Duration {
	x := r.Float64()
	return (from + time.Duration(x*x*float64(to-from))).Round(time.Millisecond)
}

func oneOf[T any](r *rand.Rand, all []T) (one T, ok bool) {
	if len(all) == 0 {
		return one, false
	}
	return all[r.IntN(len(all))], true
}
