// Package runner runs commands in sandboxes: it takes the fence in the log, has the toolbox start the program, relays its output
// and records its end. Programs outlive it: what it left running it finds again and goes on with.
package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/quota"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/seal"
	"github.com/sandtrail/sandtrail/libs/subject"
	tenants "github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/services/exec/internal/relay"
	"github.com/sandtrail/sandtrail/toolbox/client"
)

// actor is who records ends.
const actor = "service:exec"

// Config bounds a runner. Zero values are replaced by the defaults named.
type Config struct {
	// Worker is this host's name in subjects and facts.
	Worker string
	// MaxExecs at once on the worker (256) and in one sandbox (32). More are refused with too_many_execs.
	MaxExecs, MaxExecsPerSandbox int
	// DefaultTimeout is for a command without one (1 h); one over MaxTimeout (24 h) is refused.
	DefaultTimeout, MaxTimeout time.Duration
	// OutputLimit is how many bytes of each stream of a command are recorded as they come (1 GiB). A command may ask for less; more is
	// refused.
	OutputLimit uint64
	// StartDeadline is how long a command waits for its sandbox to become ready (10 min).
	StartDeadline time.Duration
	// ToolboxGrace is how long a toolbox may not answer before its sandbox counts as lost (10 s).
	ToolboxGrace time.Duration
	// CommandWait is how long a run whose program the toolbox does not know waits for its command to be delivered again (2 min).
	CommandWait time.Duration
	// CancelGrace is what a program has between TERM and KILL (2 s).
	CancelGrace time.Duration
	// FenceWait is how long a relay stands back after another one was faster (1 s).
	FenceWait time.Duration
	// SealWait is how long a relay that finds the output final waits for who made it so to record the end (10 s). Then it does.
	SealWait time.Duration
	// RequeueAfter is how often the command of an exec that waits for its sandbox is delivered again (5 s).
	RequeueAfter time.Duration
	Log          *slog.Logger
	Registerer   prometheus.Registerer
	// Tracer makes spans of each run; nil: none.
	Tracer trace.TracerProvider
}

func (c Config) withDefaults() Config {
	duration := func(d *time.Duration, def time.Duration) {
		if *d <= 0 {
			*d = def
		}
	}
	duration(&c.DefaultTimeout, time.Hour)
	duration(&c.MaxTimeout, 24*time.Hour)
	duration(&c.StartDeadline, 10*time.Minute)
	duration(&c.ToolboxGrace, 10*time.Second)
	duration(&c.CommandWait, 2*time.Minute)
	duration(&c.CancelGrace, 2*time.Second)
	duration(&c.FenceWait, time.Second)
	duration(&c.SealWait, 10*time.Second)
	duration(&c.RequeueAfter, 5*time.Second)
	if c.OutputLimit == 0 {
		c.OutputLimit = relay.DefaultLimit
	}
	if c.MaxExecs <= 0 {
		c.MaxExecs = 256
	}
	if c.MaxExecsPerSandbox <= 0 {
		c.MaxExecsPerSandbox = 32
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Tracer == nil {
		c.Tracer = noop.NewTracerProvider()
	}
	return c
}

// Log is what a runner needs of the event log.
type Log interface {
	eventlog.Log
	Find(ctx context.Context, subjectFilter string) (subject.Aggregate, error)
}

// Deps are what a runner works with.
type Deps struct {
	NC    *nats.Conn
	JS    jetstream.JetStream
	Log   Log
	Relay *relay.Relay
	// Key opens sealed environments and standard inputs.
	Key *seal.Key
	// Toolbox is the client of a sandbox's toolbox; it dials at each call.
	Toolbox func(sandbox string) *client.Client
	// Alive reports whether a sandbox lives for sure; where it does not know, the toolbox is asked. nil never knows.
	Alive func(sandbox string) bool
	// Sandboxes lists the sandboxes that have a toolbox on this worker; more do no harm.
	Sandboxes func(ctx context.Context) ([]string, error)
	// Quotas says what tenants may use; nil: nothing is bounded. Shares counts their execs then.
	Quotas interface {
		Of(ctx context.Context, tenant string) (tenants.Quotas, error)
		// Admit refuses what is new of a tenant whose budget is used up.
		Admit(ctx context.Context, tenant string) error
	}
	Shares *quota.Shares
	// Loaded is told of each sandbox that was read from the log; nil: nobody.
	Loaded func(sandbox.Sandbox)
	// Ways says whether a sandbox got a way out behind what the runner has read of it; nil: none does.
	Ways func(sandbox string) bool
}

// Runner runs the execs of one worker.
type Runner struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	metrics *metrics
	tracer  trace.Tracer
	ready   *readiness

	// life ends when the runner stops; runs count in wg.
	life context.Context
	end  context.CancelFunc
	wg   sync.WaitGroup

	mu         sync.Mutex
	runs       map[string]*run
	perSandbox map[string]int
}

// New makes a runner. Close it.
func New(ctx context.Context, cfg Config, deps Deps) *Runner {
	cfg = cfg.withDefaults()
	if deps.Alive == nil {
		deps.Alive = func(string) bool { return false }
	}
	r := &Runner{
		cfg: cfg, deps: deps, log: cfg.Log, metrics: newMetrics(cfg.Registerer),
		tracer: cfg.Tracer.Tracer("github.com/sandtrail/sandtrail/services/exec"), ready: newReadiness(deps.Log, deps.Loaded), runs: map[string]*run{}, perSandbox: map[string]int{},
	}
	r.life, r.end = context.WithCancel(context.WithoutCancel(ctx))
	return r
}

// Close stops relaying and waits until every run has let go. Programs go on; the next runner finds them.
func (r *Runner) Close() {
	r.end()
	r.wg.Wait()
}

// errFull: a bound on concurrent execs is reached.
var errFull = fault.New(fault.ResourceExhausted, fault.ReasonTooManyExecs,
	"too many commands run at once").WithRetry(time.Second)

// take asks the tenant's budget about an exec that may be new and counts it against its quota; free gives that back, unless a run keeps it. An
// exec that runs here is counted already, and one that an earlier delivery has recorded is never refused.
func (r *Runner) take(ctx context.Context, agg subject.Aggregate, quotas tenants.Quotas, attempt int) (free func(), err error) {
	free = func() {}
	if r.deps.Shares == nil || r.find(agg.ID) != nil {
		return free, nil
	}
	if err = r.admit(ctx, agg.Tenant); err == nil {
		err = r.deps.Shares.Take(ctx, agg.Tenant, quotas)
	}
	if attempt > 1 && (fault.Is(err, fault.ReasonQuota) || fault.Is(err, fault.ReasonBudgetExhausted)) {
		last, lerr := r.deps.Log.LastSeq(ctx, agg)
		switch {
		case lerr != nil:
			return free, lerr
		case last > 0:
			r.deps.Shares.Add(agg.Tenant)
			err = nil
		}
	}
	if err != nil {
		return free, err
	}
	return func() { r.deps.Shares.Free(agg.Tenant) }, nil
}

func (r *Runner) admit(ctx context.Context, id string) error {
	if r.deps.Quotas == nil {
		return nil
	}
	return r.deps.Quotas.Admit(ctx, id)
}

// quotas are those of a tenant.
func (r *Runner) quotas(ctx context.Context, id string) (tenants.Quotas, error) {
	if r.deps.Quotas == nil {
		return nil, nil
	}
	return r.deps.Quotas.Of(ctx, id)
}

// open returns the run of an exec, and whether this call made it, in which case go supervise must follow. A run found again
// after a restart counts in the bounds but is not refused by them.
func (r *Runner) open(agg subject.Aggregate, commandID string, resumed bool) (*run, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x, ok := r.runs[agg.ID]; ok {
		return x, false, nil
	}
	if r.life.Err() != nil {
		return nil, false, fault.New(fault.Unavailable, fault.ReasonWorkerUnavailable, "the worker is stopping; try again")
	}
	if !resumed {
		if len(r.runs) >= r.cfg.MaxExecs {
			return nil, false, fault.Newf(errFull.Code, errFull.Reason,
				"the worker runs %d commands, its most; try again when one has ended", r.cfg.MaxExecs).WithRetry(time.Second)
		}
		if n := r.perSandbox[agg.Sandbox]; n >= r.cfg.MaxExecsPerSandbox {
			return nil, false, fault.Newf(errFull.Code, errFull.Reason,
				"the sandbox runs %d commands, its most; try again when one has ended", n).WithRetry(time.Second)
		}
	}
	x := newRun(r, agg, commandID)
	r.runs[agg.ID] = x
	r.perSandbox[agg.Sandbox]++
	r.metrics.running.Inc()
	r.wg.Add(1)
	return x, true, nil
}

func (r *Runner) release(x *run) {
	r.mu.Lock()
	delete(r.runs, x.agg.ID)
	if r.perSandbox[x.agg.Sandbox]--; r.perSandbox[x.agg.Sandbox] == 0 {
		delete(r.perSandbox, x.agg.Sandbox)
	}
	r.mu.Unlock()
	r.metrics.running.Dec()
	x.free()
	close(x.done)
	r.wg.Done()
}

func (r *Runner) find(exec string) *run {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runs[exec]
}

// retry calls try until it gives no error that a later call may not have, with growing pauses, while ctx lives.
func (r *Runner) retry(ctx context.Context, what string, x *run, try func() error) error {
	wait := 50 * time.Millisecond
	for {
		err := try()
		if err == nil || ctx.Err() != nil || !passing(err) {
			return err
		}
		level := slog.LevelWarn
		if errors.Is(err, eventlog.ErrConflict) {
			// Somebody was faster, as with a command that is delivered again after its exec has ended: nothing is wrong.
			level = slog.LevelDebug
		}
		r.log.Log(ctx, level, "will try again", "operation", what, "exec", x.agg.ID, "error", err)
		if err := pause.For(ctx, wait); err != nil {
			return err
		}
		wait = min(2*wait, 2*time.Second)
	}
}

// passing: the log could not be reached, or was full, or was written by somebody else.
func passing(err error) bool {
	if errors.Is(err, eventlog.ErrConflict) {
		return true
	}
	var f *fault.Error
	return errors.As(err, &f) && (f.Code == fault.Unavailable || f.Reason == fault.ReasonLogFull || f.Reason == fault.ReasonConflict)
}

func tailOf(events []envelope.Recorded) eventlog.Tail {
	return eventlog.History{Events: events}.Tail()
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
