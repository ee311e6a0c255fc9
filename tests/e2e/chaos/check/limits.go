package check

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// withinLimits: at no sequence of the log, and at no sample of a host, are there more sandboxes than a worker or a tenant may have;
// none is larger than its worker; and the places of those that have ended are free.
func withinLimits(w *world) []finding {
	var f findings
	w.placements(&f)
	for _, s := range w.Samples {
		if limit := w.Limits.Sandboxes[s.Worker]; limit > 0 && len(s.Sandboxes) > limit {
			f.add("worker "+s.Worker, "%d sandboxes ran at %s, and it may have %d", len(s.Sandboxes), s.At, limit)
		}
	}
	f = append(f, freeAgain(w)...)
	return f
}

// placements follows how many sandboxes hold a place of each worker and tenant. One whose end is decided holds none here: its
// place is given back once nothing of it runs, which the log tells a moment later.
// One that is stopped holds none of its worker, and its tenant's still.
func (w *world) placements(f *findings) {
	at := map[string]string{} // worker by sandbox; empty while it is stopped
	workers, tenants := map[string]int{}, map[string]int{}
	for _, e := range w.events {
		agg, err := subject.ParseEvent(e.Subject)
		if err != nil || agg.Kind != subject.KindSandbox {
			continue
		}
		was, held := at[agg.ID]
		switch b := e.Body.(type) {
		case *eventsv1.SandboxRequested:
			if held {
				continue
			}
			at[agg.ID] = b.GetPlacement().GetWorker()
			w.fits(f, agg, b)
		case *eventsv1.SandboxScheduled:
			if held {
				at[agg.ID] = b.GetPlacement().GetWorker()
			}
		case *eventsv1.SandboxStopped:
			at[agg.ID] = ""
		case *eventsv1.SandboxStarting:
			if held && was == "" {
				at[agg.ID] = w.boxes[agg.ID].state.Worker
			}
		case *eventsv1.SandboxFailed, *eventsv1.SandboxDestroying, *eventsv1.SandboxDestroyed:
			delete(at, agg.ID)
		default:
			continue
		}
		now, holds := at[agg.ID]
		if held {
			workers[was]--
			tenants[agg.Tenant]--
		}
		if holds {
			workers[now]++
			tenants[agg.Tenant]++
			w.exceeded(f, e, "tenant "+agg.Tenant, tenants[agg.Tenant], w.Limits.PerTenant)
		}
		if now != "" {
			w.exceeded(f, e, "worker "+now, workers[now], w.Limits.Sandboxes[now])
		}
	}
}

func (w *world) exceeded(f *findings, e envelope.Recorded, who string, n, limit int) {
	if limit > 0 && n > limit {
		f.add(who, "it has %d sandboxes at event %d, and may have %d", n, e.Seq, limit)
	}
}

func (w *world) fits(f *findings, agg subject.Aggregate, b *eventsv1.SandboxRequested) {
	worker := b.GetPlacement().GetWorker()
	if most := w.Limits.MemoryBytes[worker]; most > 0 && b.GetLimits().GetMemoryBytes() > most {
		f.add(agg.Subject(), "it may use %d bytes of memory, and its worker %s has %d", b.GetLimits().GetMemoryBytes(), worker, most)
	}
	if most := w.Limits.CPUMillis[worker]; most > 0 && uint64(b.GetLimits().GetCpuMillis()) > most {
		f.add(agg.Subject(), "it may use %d millicores, and its worker %s has %d", b.GetLimits().GetCpuMillis(), worker, most)
	}
}

// freeAgain: the places that are taken are those of the sandboxes that live.
func freeAgain(w *world) []finding {
	var f findings
	places, collected := w.Buckets[topology.BucketPlace]
	if !collected {
		return nil
	}
	holders := map[string]map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(places)) {
		taken := map[string]json.RawMessage{}
		if err := json.Unmarshal(places[key].Data, &taken); err != nil {
			f.add("places of "+key, "they cannot be read: %v", err)
			continue
		}
		holders[key] = map[string]bool{}
		for _, id := range slices.Sorted(maps.Keys(taken)) {
			holders[key][id] = true
			b := w.boxes[id]
			switch {
			case b == nil:
				f.add("sandbox "+id, "it holds a place of %s, and the log does not know it", key)
			case b.state.Over():
				f.add(b.agg.Subject(), "it is %s, and holds a place of %s", b.state.State, key)
			case strings.HasPrefix(key, "worker.") && b.state.State == sandbox.Stopped:
				f.add(b.agg.Subject(), "it is stopped, and holds a place of %s", key)
			case strings.HasPrefix(key, "worker.") && key != "worker."+b.state.Worker:
				f.add(b.agg.Subject(), "it is on worker %s, and holds a place of %s", b.state.Worker, key)
			}
		}
	}
	for _, b := range sorted(w.boxes) {
		lives := !b.state.Over() && b.state.State != sandbox.Destroying && b.state.State != sandbox.Stopped
		if key := "worker." + b.state.Worker; lives && !holders[key][b.agg.ID] {
			f.add(b.agg.Subject(), "it is %s, and holds no place of %s", b.state.State, key)
		}
	}
	return f
}
