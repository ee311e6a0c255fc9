package keeper

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// scale is a sandbox of one core whose CPU time the test sets.
type scale struct {
	balance
	cpu    time.Duration
	now    time.Time
	weighs []bool
	fails  error
}

func newScale() *scale {
	s := &scale{now: time.Unix(1000, 0)}
	s.balance = balance{
		limit: time.Second, used: func() time.Duration { return s.cpu }, at: s.now,
		weigh: func(heavy bool) error {
			if s.fails == nil {
				s.weighs = append(s.weighs, heavy)
			}
			return s.fails
		},
	}
	return s
}

// pass lets time go by in which the sandbox used tenths of its limit.
func (s *scale) pass(d time.Duration, tenths int, busy bool) time.Duration {
	s.now, s.cpu = s.now.Add(d), s.cpu+d*time.Duration(tenths)/10
	next, _ := s.look(s.now, busy)
	return next
}

func TestWhoWorksWithoutAPauseWeighsLess(t *testing.T) {
	s := newScale()
	for range 5 {
		s.pass(weighEvery, 2, true)
	}
	require.Empty(t, s.weighs, "who works now and then weighs what its limit gives it")
	s.pass(weighEvery, 9, true)
	require.Equal(t, []bool{true}, s.weighs)
	for _, tenths := range []int{10, 4, 3, 7} {
		s.pass(weighEvery, tenths, true)
	}
	require.Equal(t, []bool{true}, s.weighs, "it does not go to and fro")
	s.pass(weighEvery, 1, true)
	require.Equal(t, []bool{true, false}, s.weighs)
}

func TestAWeightThatCouldNotBeSetIsTriedAgain(t *testing.T) {
	s := newScale()
	s.fails = errors.New("busy")
	s.pass(weighEvery, 9, true)
	require.Empty(t, s.weighs)
	s.fails = nil
	s.pass(weighEvery, 9, true)
	require.Equal(t, []bool{true}, s.weighs)
}

func TestWhatACommandLeftBehindIsLookedAtToo(t *testing.T) {
	s := newScale()
	require.Equal(t, weighIdle, s.pass(weighEvery, 0, false), "an idle sandbox costs little")
	require.Equal(t, weighEvery, s.pass(weighIdle, 8, false))
	require.Equal(t, []bool{true}, s.weighs)
	require.Equal(t, weighEvery, s.pass(weighEvery, 4, false), "a heavy one is looked at until it is light")
	require.Equal(t, weighIdle, s.pass(weighEvery, 0, false))
	require.Equal(t, []bool{true, false}, s.weighs)
}

// The first command of a sandbox that rested is judged by what it uses, and commands that come all the time put no look off.
func TestCommandsThatBeginDoNotHideWhatRuns(t *testing.T) {
	s := newScale()
	s.now = s.now.Add(weighIdle - time.Millisecond)
	require.Equal(t, weighEvery, s.begin(s.now))
	s.pass(weighEvery, 9, true)
	require.Equal(t, []bool{true}, s.weighs, "the rest before it does not count")

	s = newScale()
	const step = 20 * time.Millisecond
	due := weighEvery
	for passed := time.Duration(0); passed < weighEvery; passed += step {
		s.now, s.cpu = s.now.Add(step), s.cpu+step
		due = s.begin(s.now)
		require.LessOrEqual(t, due, weighEvery-passed-step+time.Millisecond)
		if due <= step {
			break
		}
	}
	s.pass(due, 10, true)
	require.Equal(t, []bool{true}, s.weighs)
}
