package app

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/lease"
	"github.com/sandtrail/sandtrail/libs/seal"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/webhook"
	"github.com/sandtrail/sandtrail/services/gc/internal/webhooks"
)

// hooks sends events to webhooks, in one process at a time.
type hooks struct {
	manager *webhooks.Manager
	js      jetstream.JetStream
	log     *slog.Logger
}

func newHooks(cfg Config, d Deps, js jetstream.JetStream, a *App) (*hooks, error) {
	key, err := seal.Load(cfg.WebhookKeyFile)
	if err != nil {
		return nil, err
	}
	m, err := webhooks.New(d.NC, js, d.Events, a.log, a.registry, webhooks.Config{Key: key, Guard: webhook.Guard{Private: cfg.WebhookPrivate}})
	if err != nil {
		return nil, err
	}
	return &hooks{manager: m, js: js, log: a.log}, nil
}

// run sends while this process has the lease, until ctx ends.
func (h *hooks) run(ctx context.Context) error {
	kv, err := h.js.KeyValue(ctx, topology.BucketLease)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("open the bucket of leases: %w", err)
	}
	return lease.Lease{KV: kv, Key: topology.LeaseWebhook, Holder: ids.New(), Log: h.log}.Run(ctx, h.manager.Run)
}
