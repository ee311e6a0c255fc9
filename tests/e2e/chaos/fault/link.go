package fault

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/rig"
)

// ways are the links of one sort.
var ways = []struct {
	name string
	is   func(*rig.Link) bool
}{
	{"nats", func(l *rig.Link) bool { return strings.HasPrefix(l.To, "nats") && !strings.HasPrefix(l.From, "nats") }},
	{"client", func(l *rig.Link) bool { return l.To == "gateway" }},
	{"clickhouse", func(l *rig.Link) bool { return l.To == rig.ClickHouse }},
}

// links are kinds that make connections fail. TCP does not let bytes arrive in another order, whatever the network does: what can be
// seen of it at its ends is that they arrive late and in small pieces, which is "slice".
func links(r *rig.Rig) []kind {
	var all []kind
	for _, w := range ways {
		if len(r.Links(w.is)) == 0 {
			continue
		}
		for _, b := range breaks {
			all = append(all, kind{b.name + "-" + w.name, 1, func(r *rig.Rig, rnd *rand.Rand) (Fault, bool) {
				l, ok := oneOf(rnd, r.Links(w.is))
				if !ok {
					return Fault{}, false
				}
				f := b.make(l, rnd)
				f.Target = l.Name()
				return f, true
			}})
		}
	}
	return all
}

var breaks = []struct {
	name string
	make func(*rig.Link, *rand.Rand) Fault
}{
	{"cut", cut}, {"bytes", afterBytes}, {"slow", slow}, {"slice", slice}, {"halfopen", halfOpen},
}

// cut closes the connections and refuses new ones.
func cut(l *rig.Link, rnd *rand.Rand) Fault {
	return Fault{
		Hold:   between(rnd, 0, 2*time.Second),
		inject: func(context.Context) error { l.Cut(); return nil },
		heal:   func(context.Context) error { return l.Restore() },
	}
}

// toxic puts toxics on a link and takes all away again.
func toxic(l *rig.Link, hold time.Duration, toxics ...rig.Toxic) Fault {
	return Fault{
		Hold: hold,
		inject: func(context.Context) error {
			var errs []error
			for _, t := range toxics {
				errs = append(errs, l.Add(t))
			}
			return errors.Join(errs...)
		},
		heal: l.Clean,
	}
}

func direction(rnd *rand.Rand) rig.Direction {
	if rnd.IntN(2) == 0 {
		return rig.Up
	}
	return rig.Down
}

// afterBytes closes each connection at a random byte.
func afterBytes(l *rig.Link, rnd *rand.Rand) Fault {
	return toxic(l, between(rnd, 200*time.Millisecond, 2*time.Second),
		rig.Toxic{Type: "limit_data", Stream: direction(rnd), Attributes: map[string]any{"bytes": 1 + rnd.IntN(64<<10)}})
}

// slow delays what flows and lets little through.
func slow(l *rig.Link, rnd *rand.Rand) Fault {
	d := direction(rnd)
	return toxic(l, between(rnd, 500*time.Millisecond, 4*time.Second),
		rig.Toxic{Type: "latency", Stream: d, Attributes: map[string]any{"latency": 20 + rnd.IntN(300), "jitter": rnd.IntN(100)}},
		rig.Toxic{Type: "bandwidth", Stream: d, Attributes: map[string]any{"rate": 64 + rnd.IntN(1024)}})
}

// slice lets what flows arrive in small pieces with pauses.
func slice(l *rig.Link, rnd *rand.Rand) Fault {
	return toxic(l, between(rnd, 500*time.Millisecond, 3*time.Second),
		rig.Toxic{Type: "slicer", Stream: direction(rnd), Attributes: map[string]any{"average_size": 16 + rnd.IntN(512), "size_variation": 8, "delay": rnd.IntN(500)}})
}

// halfOpen lets nothing through in one direction or both while the connections stay; they are closed when it is healed.
func halfOpen(l *rig.Link, rnd *rand.Rand) Fault {
	toxics := []rig.Toxic{{Type: "timeout", Stream: direction(rnd), Attributes: map[string]any{"timeout": 0}}}
	if rnd.IntN(2) == 0 {
		toxics = []rig.Toxic{
			{Type: "timeout", Stream: rig.Up, Attributes: map[string]any{"timeout": 0}}, {Type: "timeout", Stream: rig.Down, Attributes: map[string]any{"timeout": 0}},
		}
	}
	return toxic(l, between(rnd, 500*time.Millisecond, 5*time.Second), toxics...)
}
