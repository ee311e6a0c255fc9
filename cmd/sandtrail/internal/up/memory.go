package up

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// memoryLimit is where the collector begins to work harder, whatever its pace: `up` shares its host with sandboxes.
	memoryLimit = 192 << 20
	// calmPercent is how much the heap grows between two collections; floodPercent while garbage comes at floodRate bytes a second
	// or more. One flood of output makes a GB of garbage a second out of 20 MB that live, and at the calm pace collecting it takes
	// a quarter of the time.
	calmPercent  = 100
	floodPercent = 400
	floodRate    = 128 << 20
	// look is how often the rate is taken, calmAfter how long it stays below before memory is given back.
	look      = 250 * time.Millisecond
	calmAfter = 3 * time.Second
)

// pacer decides on the pace of the collector from how much has been allocated.
type pacer struct {
	allocated uint64
	at        time.Time
	flooded   time.Time
	flood     bool
}

// take takes the bytes allocated so far and reports whether the pace changes.
func (p *pacer) take(allocated uint64, now time.Time) (changed bool) {
	rate := float64(allocated-p.allocated) / now.Sub(p.at).Seconds()
	first := p.at.IsZero()
	p.allocated, p.at = allocated, now
	switch {
	case first:
		return false
	case rate >= floodRate:
		p.flooded = now
		changed = !p.flood
		p.flood = true
	case p.flood && now.Sub(p.flooded) >= calmAfter:
		p.flood = false
		return true
	}
	return changed
}

// paceCollector sets the pace of the collector until ctx ends. GOMEMLIMIT and GOGC in the environment win.
func paceCollector(ctx context.Context) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	if os.Getenv("GOGC") != "" {
		return
	}
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	tick := time.NewTicker(look)
	defer tick.Stop()
	var p pacer
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			metrics.Read(sample)
			if !p.take(sample[0].Value.Uint64(), now) {
				continue
			}
			if p.flood {
				debug.SetGCPercent(floodPercent)
				continue
			}
			debug.SetGCPercent(calmPercent)
			debug.FreeOSMemory()
		}
	}
}
