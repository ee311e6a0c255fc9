package pool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/runtime"
)

// source makes warm sandboxes of nothing.
type source struct {
	mu    sync.Mutex
	warm  map[string]Item
	next  int
	err   error
	made  int
	image map[string]string
}

func newSource() *source { return &source{warm: map[string]Item{}, image: map[string]string{}} }

func (s *source) Resolve(_ context.Context, spec runtime.Spec) (Class, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Class{Key: fmt.Sprint(spec.Image, s.image[spec.Image], spec.MemoryBytes), Spec: spec}, nil
}

func (s *source) Make(_ context.Context, c Class) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return "", s.err
	}
	s.next++
	s.made++
	id := fmt.Sprint("w", s.next)
	s.warm[id] = Item{ID: id, Class: c, Ready: true}
	return id, nil
}

func (s *source) Remove(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.warm, id)
	return nil
}

func (s *source) Warm(context.Context) (all []Item, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.warm {
		all = append(all, i)
	}
	return all, nil
}

// take is what a driver does.
func (s *source) take(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.warm[id]; !ok {
		return errors.New("somebody has it")
	}
	delete(s.warm, id)
	return nil
}

func (s *source) kinds() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := map[string]int{}
	for _, i := range s.warm {
		n[i.Class.Key]++
	}
	return n
}

type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func begin() *clock { return &clock{at: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)} }

func opened(p Policy, s Source, c *clock) *Pool {
	return New(p, s, slog.New(slog.DiscardHandler), c.now)
}

func kind(image string) runtime.Spec { return runtime.Spec{Image: image} }

func pass(t *testing.T, p *Pool) {
	t.Helper()
	require.NoError(t, p.Pass(t.Context(), true))
}

func classOf(t *testing.T, s *source, spec runtime.Spec) Class {
	t.Helper()
	c, err := s.Resolve(t.Context(), spec)
	require.NoError(t, err)
	return c
}

func TestClaimsRacedTakeEachWarmOneOnce(t *testing.T) {
	s, c := newSource(), begin()
	p := opened(Policy{Max: 8, Min: 8, Keep: []runtime.Spec{kind("a")}}, s, c)
	other := opened(p.policy, s, c)
	pass(t, p)
	require.NoError(t, other.Pass(t.Context(), false))
	want := classOf(t, s, kind("a"))
	var mu sync.Mutex
	taken, hit := map[string]int{}, 0
	var wg sync.WaitGroup
	for i := range 32 {
		from := []*Pool{p, other}[i%2]
		wg.Go(func() {
			ok := from.Claim(want, func(id string) error {
				if err := s.take(id); err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				taken[id]++
				return nil
			})
			mu.Lock()
			defer mu.Unlock()
			if ok {
				hit++
			}
		})
	}
	wg.Wait()
	require.Len(t, taken, 8)
	require.Equal(t, 8, hit)
	for id, n := range taken {
		require.Equal(t, 1, n, id)
	}
	require.EqualValues(t, 8, p.counts.hits+other.counts.hits)
	require.EqualValues(t, 24, p.counts.misses+other.counts.misses)
	pass(t, p)
	require.Equal(t, map[string]int{want.Key: 8}, s.kinds(), "refilled")
}

func TestOffRemovesWhatAnEarlierPolicyKept(t *testing.T) {
	s, c := newSource(), begin()
	pass(t, opened(Policy{Max: 3, Min: 3, Keep: []runtime.Spec{kind("a")}}, s, c))
	require.Len(t, s.kinds(), 1)
	off := opened(Policy{}, s, c)
	require.False(t, off.Claim(classOf(t, s, kind("a")), func(string) error { return nil }))
	pass(t, off)
	require.Empty(t, s.kinds())
	require.Equal(t, 3, s.made)
}

func TestAnotherProcessFindsThePool(t *testing.T) {
	s, c := newSource(), begin()
	first := opened(Policy{Max: 5}, s, c)
	want := classOf(t, s, kind("a"))
	for range 4 {
		require.False(t, first.Claim(want, s.take))
	}
	pass(t, first)
	had := s.kinds()
	require.Positive(t, had[want.Key])
	next := opened(Policy{Max: 5}, s, c)
	pass(t, next)
	require.Equal(t, had, s.kinds())
	require.True(t, next.Claim(want, s.take))
	c.add(time.Hour)
	pass(t, next)
	require.Empty(t, s.kinds(), "nobody has asked for a while")
}

func TestDrainedWhenTheImageUnderTheReferenceChanges(t *testing.T) {
	s, c := newSource(), begin()
	p := opened(Policy{Max: 4, Min: 4, Keep: []runtime.Spec{kind("a")}}, s, c)
	pass(t, p)
	before := classOf(t, s, kind("a"))
	s.mu.Lock()
	s.image["a"] = "new"
	s.mu.Unlock()
	after := classOf(t, s, kind("a"))
	require.False(t, p.Claim(after, s.take), "an old one never serves")
	pass(t, p)
	pass(t, p)
	require.Equal(t, map[string]int{after.Key: 4}, s.kinds())
	require.False(t, p.Claim(before, s.take))
}

func TestTheNumberFollowsTheDemand(t *testing.T) {
	for name, test := range map[string]struct {
		policy Policy
		// burst claims come at once, every pause, times over.
		burst, times int
		pause        time.Duration
		want         int
	}{
		"once is nothing":            {Policy{Max: 10}, 1, 1, time.Second, 0},
		"one at a time":              {Policy{Max: 10}, 1, 10, time.Minute, 1},
		"six at once":                {Policy{Max: 10}, 6, 10, time.Minute, 6},
		"six at once, half may miss": {Policy{Max: 10, HitRate: 0.5}, 6, 10, time.Minute, 4},
		"over the maximum":           {Policy{Max: 4}, 6, 10, time.Minute, 4},
		"under the minimum":          {Policy{Max: 10, Min: 3}, 1, 10, time.Minute, 3},
	} {
		t.Run(name, func(t *testing.T) {
			s, c := newSource(), begin()
			p := opened(test.policy, s, c)
			want := classOf(t, s, kind("a"))
			for range test.times {
				for range test.burst {
					p.Claim(want, s.take)
				}
				c.add(time.Second)
				pass(t, p)
				c.add(test.pause)
			}
			require.Equal(t, test.want, s.kinds()[want.Key])
		})
	}
}

func TestSeveralKindsShareTheMaximum(t *testing.T) {
	s, c := newSource(), begin()
	p := opened(Policy{Max: 6, Min: 2}, s, c)
	var kinds []Class
	for _, image := range []string{"a", "b", "c"} {
		kinds = append(kinds, classOf(t, s, kind(image)))
		for range 5 {
			p.Claim(kinds[len(kinds)-1], s.take)
		}
	}
	pass(t, p)
	for _, k := range kinds {
		require.Equal(t, 2, s.kinds()[k.Key], "one kind does not take the others' minimum")
	}
	for i := range 10 * maxClasses {
		p.Claim(classOf(t, s, kind(fmt.Sprint("other", i))), s.take)
	}
	pass(t, p)
	pass(t, p)
	require.LessOrEqual(t, len(p.classes), maxClasses)
	require.LessOrEqual(t, len(s.warm), 6)
}

func TestAFailedRefillIsCountedAndTriedLater(t *testing.T) {
	s, c := newSource(), begin()
	s.err = errors.New("no room")
	p := opened(Policy{Max: 2, Min: 2, Keep: []runtime.Spec{kind("a")}}, s, c)
	require.ErrorIs(t, p.Pass(t.Context(), true), s.err)
	failed := p.counts.failures
	require.Positive(t, failed)
	pass(t, p)
	require.Equal(t, failed, p.counts.failures, "not at once again")
	s.err = nil
	c.add(time.Minute)
	pass(t, p)
	require.Len(t, s.warm, 2)
}

func TestWhatIsDeadOrCannotBeTakenIsRemoved(t *testing.T) {
	s, c := newSource(), begin()
	p := opened(Policy{Max: 3, Min: 3, Keep: []runtime.Spec{kind("a")}}, s, c)
	pass(t, p)
	want := classOf(t, s, kind("a"))
	tried := map[string]bool{}
	require.False(t, p.Claim(want, func(id string) error { tried[id] = true; return errors.New("does not answer") }))
	require.Len(t, tried, 3)
	pass(t, p)
	for id := range tried {
		require.NotContains(t, s.warm, id)
	}
	require.Len(t, s.warm, 3)
	for id, i := range s.warm {
		i.Dead = true
		s.warm[id] = i
		tried[id] = true
	}
	pass(t, p)
	for id := range tried {
		require.NotContains(t, s.warm, id)
	}
	require.Len(t, s.warm, 3)
}

func TestPolicy(t *testing.T) {
	for _, good := range []Policy{{}, {Max: 1}, {Max: MaxWarm, Min: 3, HitRate: 0.5, Idle: time.Minute, Keep: []runtime.Spec{kind("a")}}} {
		require.NoError(t, good.Validate())
	}
	for text, bad := range map[string]Policy{
		"warm max": {Max: -1}, "warm max: 257": {Max: 257}, "warm min": {Max: 2, Min: 3}, "warm hit rate": {HitRate: 1},
		"warm idle": {Idle: time.Millisecond}, "warm images": {Keep: []runtime.Spec{kind("a")}},
	} {
		require.ErrorContains(t, bad.Validate(), text)
	}
}
