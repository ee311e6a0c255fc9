package app

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandtrail/sandtrail/libs/audit"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/lease"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// signer signs the log from time to time, in one process at a time. Two at once would do no harm, since the append says behind which
// checkpoint it goes; each would read the log for nothing.
type signer struct {
	writer audit.Writer
	every  time.Duration
	js     jetstream.JetStream
	log    *slog.Logger
	// signed is up to where, failed how often it was not possible.
	signed prometheus.Gauge
	failed prometheus.Counter
}

func newSigner(cfg Config, js jetstream.JetStream, events eventlog.Log, a *App) (*signer, error) {
	key, err := audit.LoadSigner(cfg.AuditKeyFile)
	if err != nil {
		return nil, err
	}
	s := &signer{
		writer: audit.Writer{JS: js, Log: events, Signer: key, Actor: "service:gc", Now: a.now}, every: cfg.SignEvery, js: js, log: a.log,
		signed: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sandtrail_audit_signed_sequence", Help: "Last sequence of the log that a signed checkpoint covers, as this process has signed it.",
		}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sandtrail_audit_failures_total", Help: "Times that the log could not be signed.",
		}),
	}
	for _, c := range []prometheus.Collector{s.signed, s.failed} {
		if err := a.registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	a.log.Info("the log is signed", "key", audit.KeyID(key.Public()), "every", cfg.SignEvery)
	return s, nil
}

// run signs while this process has the lease, until ctx ends.
func (s *signer) run(ctx context.Context) error {
	kv, err := s.js.KeyValue(ctx, topology.BucketLease)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("open the bucket of leases: %w", err)
	}
	return lease.Lease{KV: kv, Key: topology.LeaseSign, Holder: ids.New(), Log: s.log}.Run(ctx, func(ctx context.Context) error {
		s.loop(ctx)
		return nil
	})
}

// sign signs what is new, once.
func (s *signer) sign(ctx context.Context) error {
	c, err := s.writer.Sign(ctx)
	switch {
	case err == nil:
		s.signed.Set(float64(c.Size))
	case ctx.Err() == nil:
		s.failed.Inc()
		s.log.Warn("the log was not signed", "error", err)
	}
	return err
}

func (s *signer) loop(ctx context.Context) {
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	for {
		_ = s.sign(ctx) // what failed was told, and is tried again
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
