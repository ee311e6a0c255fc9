package fault

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/rig"
)

// nodesTarget is the one target of everything that happens to the nodes of a cluster: never to two at once.
const nodesTarget = "nats"

// clusters are kinds that take a node of a cluster of three, or its way to the others.
func clusters(r *rig.Rig) []kind {
	if len(r.Nodes()) < 3 {
		return nil
	}
	return []kind{
		{"leader-loss", 2, func(r *rig.Rig, rnd *rand.Rand) (Fault, bool) {
			return lateNode(r, between(rnd, 0, 3*time.Second), func(ctx context.Context) (*rig.Process, error) { return r.Leader(ctx, "EVT") }), true
		}},
		{"minority-loss", 2, func(r *rig.Rig, rnd *rand.Rand) (Fault, bool) {
			p, ok := oneOf(rnd, r.Nodes())
			return lateNode(r, between(rnd, time.Second, 10*time.Second), func(context.Context) (*rig.Process, error) { return p, nil }), ok
		}},
		{"partition", 2, func(r *rig.Rig, rnd *rand.Rand) (Fault, bool) {
			p, ok := oneOf(rnd, r.Nodes())
			return isolate(r, p, between(rnd, 500*time.Millisecond, 8*time.Second)), ok
		}},
	}
}

// lateNode kills the node that find gives at the moment of the injection.
func lateNode(_ *rig.Rig, hold time.Duration, find func(context.Context) (*rig.Process, error)) Fault {
	var p *rig.Process
	return Fault{
		Target: nodesTarget, Hold: hold,
		inject: func(ctx context.Context) (err error) {
			if p, err = find(ctx); err != nil {
				return err
			}
			return p.Kill(syscall.SIGKILL)
		},
		heal: func(context.Context) error {
			if p != nil {
				p.Release()
			}
			return nil
		},
	}
}

// isolate cuts a node off from the other nodes; clients reach it still.
func isolate(r *rig.Rig, p *rig.Process, hold time.Duration) Fault {
	routes := r.Links(func(l *rig.Link) bool {
		return strings.HasPrefix(l.From, "nats") && strings.HasPrefix(l.To, "nats") && (l.From == p.Name || l.To == p.Name)
	})
	return Fault{
		Target: nodesTarget, Hold: hold,
		inject: func(context.Context) error {
			for _, l := range routes {
				l.Cut()
			}
			return nil
		},
		heal: func(context.Context) error {
			var errs []error
			for _, l := range routes {
				errs = append(errs, l.Restore())
			}
			return errors.Join(errs...)
		},
	}
}
