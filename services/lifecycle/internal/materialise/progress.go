package materialise

import (
	"context"
	"sync"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/history"
)

const (
	// steady is how long a start must wait for the same thing before that stands in the log: most waits are over sooner, and what
	// changes to and fro is two events a second at most.
	steady = 500 * time.Millisecond
	// maxReports bounds what one start writes of what it waits for.
	maxReports = 32
)

// progress records what a start waits for.
type progress struct {
	r *Role
	s sandbox.Sandbox
	m history.Meta
	// news is rung when current has changed.
	news chan struct{}
	done chan struct{}

	mu      sync.Mutex
	current runtime.Progress
}

// report begins to record what the driver reports, until ctx ends; then wait returns.
func (r *Role) report(ctx context.Context, s sandbox.Sandbox, m history.Meta) *progress {
	p := &progress{r: r, s: s, m: m, news: make(chan struct{}, 1), done: make(chan struct{})}
	go p.run(ctx)
	return p
}

// set is what the driver calls.
func (p *progress) set(to runtime.Progress) {
	p.mu.Lock()
	changed := to != p.current
	p.current = to
	p.mu.Unlock()
	if !changed {
		return
	}
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// last is what the start waits for, or waited for at its end.
func (p *progress) last() runtime.Progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

func (p *progress) wait() { <-p.done }

func (p *progress) run(ctx context.Context) {
	defer close(p.done)
	recorded := runtime.Progress{Reason: p.s.Reason, Message: p.s.Message}
	for range maxReports {
		for {
			select {
			case <-p.news:
			case <-ctx.Done():
				return
			}
			pause := time.NewTimer(steady)
			select {
			case <-pause.C:
			case <-ctx.Done():
				pause.Stop()
				return
			}
			if p.last() != recorded {
				break
			}
		}
		recorded = p.last()
		_, err := p.r.record(ctx, p.s, "waiting", p.m, func(sandbox.Sandbox, time.Time) sandbox.Command {
			return sandbox.MarkWaiting{Worker: p.r.cfg.Name, Reason: fault.Reason(recorded.Reason), Message: recorded.Message}
		})
		if err != nil && ctx.Err() == nil {
			p.r.log.Warn("what a start waits for was not recorded", "sandbox", p.s.ID, "error", err)
		}
	}
}
