package keeper

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whatever the sentry says, the parts are the total together, and none is negative.
func TestSplitIsTheTotal(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	open := map[*account]struct{}{}
	var all []*account
	var used time.Duration
	for i := range 1000 {
		if len(open) < 5 && random.IntN(3) == 0 {
			a := &account{tag: uint32(i)}
			open[a] = struct{}{}
			all = append(all, a)
		}
		var times map[uint32]time.Duration
		if random.IntN(4) > 0 {
			times = map[uint32]time.Duration{}
			for a := range open {
				if random.IntN(5) > 0 {
					times[a.tag] = max(0, a.seen+time.Duration(random.IntN(5)-1)*100*time.Millisecond)
				}
			}
		}
		total := time.Duration(random.IntN(int(time.Second)))
		var ending *account
		if random.IntN(3) == 0 {
			for ending = range open {
				break
			}
		}
		if len(open) > 0 {
			used += total
		}
		split(total, open, times, ending)
		delete(open, ending)
		var sum time.Duration
		for _, a := range all {
			require.GreaterOrEqual(t, a.used.cpu, time.Duration(0))
			sum += a.used.cpu
		}
		require.InDelta(t, float64(used), float64(sum), float64(i+1)*10)
		require.LessOrEqual(t, sum, used+time.Duration(i+1)*5, "rounding apart")
	}
}
