package app

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/lease"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// lead reconciles and reports for the worker until ctx ends: always where this process is the only one of it, else while it has the
// worker's lease. Two that do so at once for a moment do no harm, since the log decides, but each would ask everything twice.
func (a *App) lead(ctx context.Context) error {
	do := func(ctx context.Context) error {
		a.leads.Store(true)
		defer a.leads.Store(false)
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error { return a.heartbeat.Run(ctx, a.js) })
		g.Go(func() error { return a.reconcile.Run(ctx) })
		return g.Wait()
	}
	if !a.cfg.Shared {
		return do(ctx)
	}
	kv, err := a.js.KeyValue(ctx, topology.BucketLease)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("open the bucket of leases: %w", err)
	}
	return lease.Lease{KV: kv, Key: "reconcile." + a.cfg.Worker, Holder: ids.New(), Log: a.log}.Run(ctx, do)
}
