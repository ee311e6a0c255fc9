package webhooks

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whatever is done in whatever order, and whenever the process dies, an event that is not done is given again and one that is stored as
// done is not.
func TestWindowsForgetNothing(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		const last = 60
		wanted := map[uint64]bool{}
		for seq := uint64(1); seq <= last; seq++ {
			wanted[seq] = r.IntN(3) > 0
		}
		finished := map[uint64]bool{}
		var p progress
		for life := 0; life < 50 && p.After < last; life++ {
			w := windowOf(p)
			var open []uint64
			for seq := p.After + 1; seq <= last; seq++ {
				w.pass(seq)
				if !wanted[seq] || !w.take(seq) {
					continue
				}
				require.False(t, slices.Contains(p.Done, seq), "stored as done, and given again")
				open = append(open, seq)
				if r.IntN(2) == 0 {
					continue
				}
				at := r.IntN(len(open))
				w.finish(open[at])
				finished[open[at]] = true
				open = slices.Delete(open, at, at+1)
				if r.IntN(4) == 0 {
					w.store(&p)
				}
			}
			for seq := uint64(1); seq <= p.After; seq++ {
				require.True(t, !wanted[seq] || finished[seq], "seed %d: %d is not done, and behind the place", seed, seq)
			}
		}
	}
}

func TestPausesGrowUpToABound(t *testing.T) {
	b := Backoff{First: time.Second, Most: time.Minute}
	for n, want := range map[int]time.Duration{1: time.Second, 2: 4 * time.Second, 3: 16 * time.Second, 4: time.Minute, 9: time.Minute, 1000: time.Minute} {
		for range 100 {
			got := b.pause(n, 0)
			require.GreaterOrEqual(t, got, want*4/5)
			require.LessOrEqual(t, got, want*6/5+1)
		}
	}
	require.Equal(t, 30*time.Second, b.pause(1, 30*time.Second), "as long as the endpoint asks")
	require.Equal(t, time.Minute, b.pause(1, time.Hour), "within the bound")
}
