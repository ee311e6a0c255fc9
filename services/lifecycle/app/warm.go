package app

import (
	"time"

	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/pool"
)

// WarmConfig says how many sandboxes a worker keeps ready that are nobody's yet, see docs/adr/0029-warm-pool.md. The zero value keeps
// none, and removes what an earlier process kept.
type WarmConfig struct {
	// Max of all kinds together: 0. Each takes the memory of a sandbox that does nothing.
	Max int
	// Min of each kind that was asked for lately: 0.
	Min int
	// HitRate is the part of creates that is to find one ready, over 0 and under 1: 0.9. Between Min and Max the number follows it.
	HitRate float64
	// Idle is how long a kind is kept that nobody asks for: 10 min.
	Idle time.Duration
	// Images are kept ready with the default limits also before anybody has asked for them.
	Images []string
}

// warm is the policy; c has its defaults.
func (c Config) warm() pool.Policy {
	p := pool.Policy{Max: c.Warm.Max, Min: c.Warm.Min, HitRate: c.Warm.HitRate, Idle: c.Warm.Idle}
	for _, ref := range c.Warm.Images {
		p.Keep = append(p.Keep, runtime.Spec{
			Image: ref, MountPath: c.MountPath, WorkspaceBytes: c.WorkspaceBytes, CPUMillis: c.CPUMillis, MemoryBytes: c.MemoryBytes, PIDs: c.PIDs,
		})
	}
	return p
}

// pooled is a driver that keeps sandboxes ready.
type pooled interface{ Pool() *pool.Pool }
