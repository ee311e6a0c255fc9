// Package projection keeps a view of the log up to date: it reads events in order from where it stopped and applies them. A
// view can always be built again from nothing. It outlives the process, as the checkpoint does: one in memory only would start
// without what came before the checkpoint.
package projection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// Projection is what a view does with events.
type Projection interface {
	// Name is a subject token; with Version it names the checkpoint.
	Name() string
	// Version changes when Apply means something else: the view is then built from nothing under the new one.
	Version() int
	// Subjects are filters of events.
	Subjects() []string
	// Apply puts an event into the view and does nothing else: no message, no call, no cost beside it, because a replay applies
	// everything again. It is idempotent: after a crash it sees up to SaveEvery events a second time, and one that was set aside may
	// come again behind later ones. Events of types that this program does not know do not come here.
	//
	// An error is tried again, without end and in order: a view that misses an event is wrong. Only where it is known that trying
	// cannot help (dlq.Hopeless, tried some times; a panic, dlq.MaxPanics times) the event is set aside as a dead letter, because
	// otherwise it would be the last one that any aggregate's view sees.
	Apply(ctx context.Context, e envelope.Recorded) error
}

// Healer is a Projection whose view can hold what events say that the log has lost, as a server may that lost power.
type Healer interface {
	// Heal removes from the view, or puts right, what the log does not say. Every event is applied again behind it. It may be
	// repeated, and others may run the same projection meanwhile.
	Heal(ctx context.Context) error
}

const (
	// SaveEvery and SaveAfter are when the checkpoint is stored: so many events or so long after the first that is not covered.
	SaveEvery = 500
	SaveAfter = time.Second
)

// Options of a runner.
type Options struct {
	// Service is who runs it, a subject token; by default "projection". Dead letters name it.
	Service string
	// Log nil discards.
	Log *slog.Logger
	// Registerer nil keeps no metrics.
	Registerer prometheus.Registerer
}

// Runner runs one projection.
type Runner struct {
	p       Projection
	js      jetstream.JetStream
	log     *slog.Logger
	metrics *metrics
	service string
	invalid error
	// applying is held by who applies: the session, or a redrive beside it.
	applying sync.Mutex
	// failing is the event that failed last. Only the session uses it.
	failing failing

	// at is through where the view is: no event of its subjects up to there is missing in it.
	at *position

	mu sync.Mutex
	// running is set while Run is; stop ends its session so that the next one starts from the checkpoint.
	running bool
	stop    context.CancelFunc
	// forget makes the next session start from nothing; it is closed when that has been done.
	forget chan struct{}
}

// New is a runner of p over the stream of events, which topology must have made.
func New(js jetstream.JetStream, p Projection, o Options) *Runner {
	r := &Runner{p: p, js: js, log: o.Log, at: newPosition(), service: cmp.Or(o.Service, "projection")}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	r.log = r.log.With("projection", r.key())
	r.metrics, r.invalid = newMetrics(o.Registerer, p.Name())
	if !subject.ValidToken(r.key()) || !subject.ValidToken(r.service) || p.Version() < 1 || len(p.Subjects()) == 0 {
		r.invalid = errors.New("a projection needs a name and a service that are tokens, a version from 1 and subjects")
	}
	return r
}

// key of the checkpoint: <name>-v<version>
func (r *Runner) key() string { return fmt.Sprintf("%s-v%d", r.p.Name(), r.p.Version()) }

// Run applies events until ctx ends and stores the checkpoint on the way out. Servers that go away are waited for; a stream
// that was made anew is read from its beginning. A projection that cannot run, a second Run at the same time and a connection
// that was closed are errors. While it runs it takes redrives of events that were set aside.
func (r *Runner) Run(ctx context.Context) error {
	if r.invalid != nil {
		return r.invalid
	}
	r.mu.Lock()
	if r.running {
		r.mu.Unlock()
		return fmt.Errorf("projection %s runs already", r.key())
	}
	r.running = true
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.running, r.stop = false, nil
		r.mu.Unlock()
	}()
	stop, err := dlq.Answer(ctx, r.js.Conn(), r.key(), r.log, r.redrive)
	if err != nil {
		return err
	}
	defer stop()
	for failures := 0; ctx.Err() == nil; {
		session, cancel := context.WithCancel(ctx)
		r.mu.Lock()
		r.stop = cancel
		r.mu.Unlock()
		err := r.session(session, func() { failures = 0 })
		stopped := session.Err() != nil
		cancel()
		switch {
		case errors.Is(err, nats.ErrConnectionClosed) && r.js.Conn().IsClosed():
			return fmt.Errorf("projection %s: %w", r.key(), err)
		case stopped || err == nil:
			continue
		}
		failures++
		r.metrics.failures.Inc()
		if sampled(failures) {
			r.log.WarnContext(ctx, "projection stopped; starting again", "failures", failures, "error", err)
		}
		backOff(ctx, failures)
	}
	return nil
}

// WaitFor returns when the view has every event of its subjects up to the stream sequence seq: a caller that appended an event
// reads its own writes then. For a sequence that no event of its subjects has it can take two seconds. It gives
// fault.DeadlineExceeded or fault.Cancelled when ctx ends first.
func (r *Runner) WaitFor(ctx context.Context, seq uint64) error {
	seen, err := r.at.wait(ctx, seq)
	if err != nil {
		return ended(err, fmt.Sprintf("the view is at event %d, not at %d yet", seen, seq))
	}
	return nil
}

// Rebuild forgets the checkpoint, so that every event is applied again, and returns when the view is where the log was at the
// call. Run must be running. What Apply wrote before is not removed: it is overwritten.
func (r *Runner) Rebuild(ctx context.Context) error {
	r.mu.Lock()
	if !r.running || r.stop == nil {
		r.mu.Unlock()
		return fault.New(fault.FailedPrecondition, fault.ReasonIllegalState, "the projection is not running")
	}
	done := r.forget
	if done == nil {
		done = make(chan struct{})
		r.forget = done
	}
	r.stop()
	r.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
		return ended(ctx.Err(), "the rebuild did not start in time")
	}
	last, err := r.last(ctx)
	if err != nil {
		return err
	}
	return r.WaitFor(ctx, last)
}

func (r *Runner) last(ctx context.Context) (uint64, error) {
	s, err := r.stream(ctx)
	if err != nil {
		return 0, fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "the event log cannot be reached").Because(err)
	}
	return s.CachedInfo().State.LastSeq, nil
}

func ended(err error, message string) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fault.New(fault.DeadlineExceeded, fault.ReasonTimeout, message).Because(err)
	}
	return fault.New(fault.Cancelled, fault.ReasonCancelled, message).Because(err)
}
