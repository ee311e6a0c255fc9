// Package app is gc: it finds sandboxes over their time and workspaces past their delete-after and has them removed by the
// services that own them.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/errgroup"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/logclock"
	"github.com/sandtrail/sandtrail/libs/sandbox/views"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/watermillnats"
	"github.com/sandtrail/sandtrail/services/gc/internal/sweep"
	"github.com/sandtrail/sandtrail/services/gc/internal/transcripts"
)

// Finding is one thing that is over, see package sweep.
type Finding = sweep.Finding

// Config of gc.
type Config struct {
	// Every is the longest time between two passes: 1 min. What becomes due in between is found when it is due.
	Every time.Duration
	// KeepViews is how long the view of a sandbox stays behind the end of its workspace: 30 days, as long as receipts. The log has
	// both for ever.
	KeepViews time.Duration
	// OutputEvery is the time between two looks at the room that transcripts take up: 1 s.
	OutputEvery time.Duration
	// TenantOutputBytes is the most that the transcripts of one tenant may take up; 0 is no bound but the room that there is.
	TenantOutputBytes uint64
	// AuditKeyFile holds the private key that the log is signed with; it is made when absent. "": this process does not sign the log.
	AuditKeyFile string
	// WebhookKeyFile holds the key that secrets of webhooks are sealed with; it is made when absent. "": this process sends to no webhook.
	WebhookKeyFile string
	// WebhookPrivate allows webhooks at addresses that are not public, and plain HTTP.
	WebhookPrivate bool
	// SignEvery is the time between two signatures: 1 min. Nothing is signed while nothing happens.
	SignEvery time.Duration
}

// Validate reports every mistake at once.
func (c Config) Validate() error {
	var errs []error
	if c.KeepViews < 0 {
		errs = append(errs, fmt.Errorf("keep views: %s is negative", c.KeepViews))
	}
	if c.Every < 0 {
		errs = append(errs, fmt.Errorf("interval: %s is negative", c.Every))
	}
	if c.SignEvery < 0 {
		errs = append(errs, fmt.Errorf("interval of signatures: %s is negative", c.SignEvery))
	}
	if c.OutputEvery < 0 {
		errs = append(errs, fmt.Errorf("output interval: %s is negative", c.OutputEvery))
	}
	return errors.Join(errs...)
}

// Deps are what gc needs from whoever composes it.
type Deps struct {
	NC       *nats.Conn
	Log      *slog.Logger
	Registry *prometheus.Registry
	// Tracer makes a span of each pass that finds something; nil makes none.
	Tracer trace.TracerProvider
	// Events is the log; nil is the one on NC.
	Events eventlog.Log
	// Now is the clock of every decision; nil is that of the log's server.
	Now func() time.Time
}

// App is a gc service.
type App struct {
	// clock is that of the log's server; nil where Deps has one.
	clock *logclock.Clock

	cfg Config
	log *slog.Logger
	js  jetstream.JetStream
	// registry of this process's metrics.
	registry *prometheus.Registry
	sweeper  *sweep.Sweeper
	now      func() time.Time
	output   *transcripts.Keeper
	found    *prometheus.CounterVec
	failed   prometheus.Counter
	evicted  prometheus.Counter
	signer   *signer
	hooks    *hooks
}

// New checks the configuration.
func New(ctx context.Context, cfg Config, d Deps) (*App, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("gc configuration: %w", err)
	}
	if cfg.Every == 0 {
		cfg.Every = time.Minute
	}
	if cfg.KeepViews == 0 {
		cfg.KeepViews = topology.ReceiptTTL
	}
	if cfg.OutputEvery == 0 {
		cfg.OutputEvery = time.Second
	}
	if cfg.SignEvery == 0 {
		cfg.SignEvery = time.Minute
	}
	js, err := jetstream.New(d.NC)
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	if d.Events == nil {
		d.Events = jslog.New(js)
	}
	var clock *logclock.Clock
	if d.Now == nil {
		if clock, err = logclock.New(ctx, js); err != nil {
			return nil, err
		}
		d.Now = clock.Now
	}
	if d.Tracer == nil {
		d.Tracer = noop.NewTracerProvider()
	}
	if d.Registry == nil {
		d.Registry = prometheus.NewRegistry()
	}
	a := &App{
		clock: clock, cfg: cfg, log: d.Log.With("service", "gc"), js: js, registry: d.Registry, now: d.Now,
		sweeper: sweep.New(js, d.Events, d.Now, d.Tracer.Tracer("github.com/sandtrail/sandtrail/services/gc")),
		found: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandtrail_gc_findings_total", Help: "What was over and asked to be removed, by kind and action.",
		}, []string{"kind", "action"}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sandtrail_gc_failures_total", Help: "Passes that did not look at everything.",
		}),
		evicted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sandtrail_gc_transcripts_given_up_bytes_total", Help: "Recorded output that was given up before its time for lack of room.",
		}),
	}
	a.output = transcripts.New(js, transcripts.Options{TenantBytes: cfg.TenantOutputBytes, Log: a.log})
	for _, f := range []Finding{
		{Kind: sweep.KindWorkspace, Action: sweep.ActionDelete},
		{Kind: sweep.KindSandbox, Action: sweep.ActionDestroy},
		{Kind: sweep.KindSandbox, Action: sweep.ActionEnd},
		{Kind: sweep.KindView, Action: sweep.ActionForget},
	} {
		a.found.WithLabelValues(f.Kind, f.Action) // so that the first one is an increase
	}
	for _, c := range []prometheus.Collector{a.found, a.failed, a.evicted} {
		if err := d.Registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	if cfg.AuditKeyFile != "" {
		if a.signer, err = newSigner(cfg, js, d.Events, a); err != nil {
			return nil, err
		}
	}
	if cfg.WebhookKeyFile != "" {
		a.hooks, err = newHooks(cfg, d, js, a)
	}
	return a, err
}

// Once makes one pass, signs the log where it has a key, and returns what is over. Unless dryRun the commands to remove it are sent when it returns; the findings
// are good even where an error tells that not everything was looked at.
func (a *App) Once(ctx context.Context, dryRun bool) ([]Finding, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	set := views.New(a.log, sweep.Relevant)
	go func() { _ = set.Run(ctx, a.js) }()
	select {
	case <-set.Ready():
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	found, err := a.pass(ctx, set, dryRun)
	old, failed := a.views(ctx, dryRun)
	err = errors.Join(err, failed)
	if a.signer != nil && !dryRun {
		err = errors.Join(err, a.signer.sign(ctx))
	}
	return append(found, old...), err
}

// views takes out the views of what has long been over.
func (a *App) views(ctx context.Context, dryRun bool) ([]Finding, error) {
	found, err := a.sweeper.Views(ctx, a.cfg.KeepViews, dryRun)
	if !dryRun {
		a.tell(found)
	}
	return found, err
}

func (a *App) tell(found []Finding) {
	for _, f := range found {
		a.found.WithLabelValues(f.Kind, f.Action).Inc()
		a.log.Info("over", "kind", f.Kind, "tenant", f.Tenant, "sandbox", f.ID, "action", f.Action, "reason", f.Reason)
	}
}

// viewsEvery is how often the loop looks at the views of all sandboxes, which is a read of the whole bucket.
const viewsEvery = time.Hour

// forgetViews looks at them at once and then every hour, until ctx ends.
func (a *App) forgetViews(ctx context.Context) {
	tick := time.NewTicker(viewsEvery)
	defer tick.Stop()
	for {
		if _, err := a.views(ctx, false); err != nil && ctx.Err() == nil {
			a.failed.Inc()
			a.log.Warn("not every view was looked at", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (a *App) pass(ctx context.Context, set *views.Set, dryRun bool) ([]Finding, error) {
	found, err := a.sweeper.Sweep(ctx, set.All(), dryRun)
	if !dryRun {
		a.tell(found)
	}
	return found, err
}

// Run makes a pass whenever something becomes due, and every Config.Every, until ctx ends. A pass that fails is made again.
func (a *App) Run(ctx context.Context) error {
	set := views.New(a.log, sweep.Relevant)
	news := make(chan struct{}, 1)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return set.Run(ctx, a.js) })
	g.Go(func() error { return a.listen(ctx, news) })
	g.Go(func() error { a.keepRoom(ctx); return nil })
	g.Go(func() error { a.forgetViews(ctx); return nil })
	if a.signer != nil {
		g.Go(func() error { return a.signer.run(ctx) })
	}
	if a.hooks != nil {
		g.Go(func() error { return a.hooks.run(ctx) })
	}
	if a.clock != nil {
		g.Go(func() error { a.clock.Run(ctx); return nil })
	}
	g.Go(func() error {
		select {
		case <-set.Ready():
		case <-ctx.Done():
			return nil
		}
		for {
			if _, err := a.pass(ctx, set, false); err != nil && ctx.Err() == nil {
				a.failed.Inc()
				a.log.Warn("the pass was incomplete", "error", err)
			}
			if !a.wait(ctx, set, news) {
				return nil
			}
		}
	})
	return g.Wait()
}

// keepRoom looks after the room of transcripts until ctx ends.
func (a *App) keepRoom(ctx context.Context) {
	tick := time.NewTicker(a.cfg.OutputEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		evicted, err := a.output.Look(ctx)
		for _, e := range evicted {
			a.evicted.Add(float64(e.Bytes))
		}
		if err != nil && ctx.Err() == nil {
			a.failed.Inc()
			a.log.Warn("the room of transcripts was not looked after", "error", err)
		}
	}
}

// listen takes what happens to sandboxes and workspaces as a hint that something else may be due next.
func (a *App) listen(ctx context.Context, news chan<- struct{}) error {
	sub := watermillnats.NewSubscriber(a.js, watermillnats.SubscriberConfig{
		Service: "gc", Lanes: 1, Log: a.log, Registerer: a.registry,
		Consumer: func(string) (string, string, error) { return topology.StreamEvents, topology.ConsumerGC, nil },
	})
	defer func() { _ = sub.Close() }()
	messages, err := sub.Subscribe(ctx, topology.ConsumerGC)
	if err != nil {
		return fmt.Errorf("follow what happens: %w", err)
	}
	for m := range messages {
		select {
		case news <- struct{}{}:
		default:
		}
		m.Ack()
	}
	if ctx.Err() == nil {
		return errors.New("the events of sandboxes cannot be followed any more")
	}
	return nil
}

// wait returns when the next pass is to be made, false when ctx has ended. News only say that the time may have changed.
func (a *App) wait(ctx context.Context, set *views.Set, news <-chan struct{}) bool {
	begin := time.Now()
	for {
		timer := time.NewTimer(a.pause(set) - time.Since(begin))
		select {
		case <-timer.C:
			return true
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-news:
			timer.Stop()
		}
		// Bursts of news cost one look at the views a second, and a view is behind its event by some milliseconds.
		settle := time.NewTimer(min(time.Second, a.cfg.Every))
		select {
		case <-settle.C:
		case <-ctx.Done():
			settle.Stop()
			return false
		}
	}
}

// pause is the time until the next view is due, between a second and Config.Every.
func (a *App) pause(set *views.Set) time.Duration {
	now, wait := a.now(), a.cfg.Every
	for _, v := range set.All() {
		if due := sweep.Due(v); due.After(now) {
			wait = min(wait, due.Sub(now))
		}
	}
	return max(wait, min(time.Second, a.cfg.Every))
}
