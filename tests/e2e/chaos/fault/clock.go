package fault

import (
	"context"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/rig"
)

// Jumps of the wall clock of a service are anything from a second to days. The log's own time is what everything ends by, and its server
// redelivers by its wall clock: what was handed out while that was ahead comes again only once it is there again. So NATS servers jump by
// less than the time within which log and host have to agree.
const (
	leastJump   = time.Second
	serviceJump = 10 * 24 * time.Hour
	logJump     = 8 * time.Second
)

// clocks are kinds that set the wall clock of one process, and set it right when they are healed: a jump too, the other way.
func clocks(r *rig.Rig) []kind {
	var all []kind
	for _, p := range r.Processes() {
		if p.Clock == nil {
			continue
		}
		most := serviceJump
		if strings.HasPrefix(p.Name, "nats") || p.Name == rig.UpProcess {
			most = logJump
		}
		for _, way := range []struct {
			name string
			sign time.Duration
		}{{"forward", 1}, {"back", -1}} {
			all = append(all, kind{"clock-" + way.name + "-" + group(p.Name), 1, func(_ *rig.Rig, rnd *rand.Rand) (Fault, bool) {
				off := way.sign * jump(rnd, most)
				return Fault{
					// Not the process itself: it may be killed meanwhile, and starts with a clock that is wrong.
					Target: "clock-" + p.Name, Hold: between(rnd, 200*time.Millisecond, 6*time.Second),
					inject: func(context.Context) error { return p.Clock.Set(off) },
					heal:   func(context.Context) error { return p.Clock.Set(0) },
				}, true
			}})
		}
	}
	return all
}

// jump gives a duration up to most, of each order of magnitude as likely.
func jump(rnd *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(float64(leastJump) * math.Pow(float64(most)/float64(leastJump), rnd.Float64()))
}
