package relay

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
)

// flood passes as much of a sandbox's output as it may until a time, in chunks, and says how much.
func flood(f *Fair, now *time.Time, until time.Time, boxes ...string) map[string]int {
	const chunk = 128 << 10
	passed, free := map[string]int{}, map[string]time.Time{}
	for now.Before(until) {
		next := until
		for _, b := range boxes {
			if !now.Before(free[b]) {
				// A little time goes by for each, as it does for whoever is not held back.
				free[b] = now.Add(max(f.charge(b, chunk, *now), time.Millisecond))
				passed[b] += chunk
			}
			if free[b].Before(next) {
				next = free[b]
			}
		}
		*now = next
	}
	return passed
}

func TestAFloodIsHeldBackWhileOthersWork(t *testing.T) {
	const rate = 8 << 20
	f := NewFair(rate)
	now := time.Unix(1000, 0)
	second := func(n int) time.Time { return now.Add(time.Duration(n) * time.Second) }

	alone := flood(f, &now, second(1), "a")
	require.Greater(t, alone["a"], 10*rate, "who is alone is not held back")

	f.begin("b", now)
	beside := flood(f, &now, second(4), "a")
	require.InDelta(t, 4*rate+fairBurst, beside["a"], 0.1*rate)

	f.begin("b", now)
	two := flood(f, &now, second(8), "a", "c")
	require.InDelta(t, 8*rate/2+fairBurst, two["a"], 0.5*rate, "floods share")
	require.InDelta(t, 8*rate/2+fairBurst, two["c"], 0.5*rate, "floods share")

	now = now.Add(fairWindow + time.Second)
	again := flood(f, &now, second(1), "a")
	require.Greater(t, again["a"], 10*rate, "nobody else works any more")
}

// What commands usually write passes as it comes, whatever floods beside it.
func TestOutputThatIsNoFloodIsNeverHeldBack(t *testing.T) {
	f := NewFair(8 << 20)
	now := time.Unix(1000, 0)
	for range 100 {
		f.begin("small", now)
		require.Zero(t, f.charge("small", 64<<10, now))
		flood(f, &now, now.Add(100*time.Millisecond), "a", "b")
	}
}

func TestSandboxesThatRestAreForgotten(t *testing.T) {
	f := NewFair(1 << 20)
	now := time.Unix(1000, 0)
	for i := range 10 * fairMost {
		f.begin(fmt.Sprint(i), now)
		now = now.Add(fairWindow / fairMost)
		require.LessOrEqual(t, len(f.boxes), fairMost+fairMost/10)
	}
}

// The relay itself: a flood takes its time as soon as another sandbox has begun a command.
func TestTheRelayHoldsAFloodBack(t *testing.T) {
	js, _ := broker(t)
	const rate, size = 2 << 20, 3 << 20
	r, err := New(t.Context(), js, "OUT", Options{Fair: NewFair(rate)})
	require.NoError(t, err)
	p := newProgram(size/(32<<10), func() int { return 32 << 10 })
	x := Exec{ID: ids.New(), Sandbox: "s1"}
	x.Subject = "out.acme.s1." + x.ID
	r.Begin("s2")
	begin := time.Now()
	_, end, err := r.Run(t.Context(), x, Position{}, p.attach)
	require.NoError(t, err)
	require.NotNil(t, end)
	// All but the burst and the last chunk, which nothing waits behind.
	least := float64(size-fairBurst-256<<10) / rate
	require.GreaterOrEqual(t, time.Since(begin).Seconds(), least)
}
