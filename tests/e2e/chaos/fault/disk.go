package fault

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/rig"
)

// disks are kinds that leave no room on one of the disks for a while.
func disks(*rig.Rig) []kind {
	var all []kind
	for _, name := range []string{rig.StoreDisk, rig.SpoolDisk, rig.WorkspaceDisk} {
		all = append(all, kind{"full-" + name, 1, func(r *rig.Rig, rnd *rand.Rand) (Fault, bool) {
			d := r.Disk(name)
			return Fault{
				Target: "disk-" + name, Hold: between(rnd, 200*time.Millisecond, 3*time.Second),
				inject: func(context.Context) error { return d.Fill() },
				heal:   func(context.Context) error { return d.Free() },
			}, true
		}})
	}
	return all
}
