package runner

import (
	"context"
	"sync"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/services/exec/internal/wayout"
)

// readyMost bounds the sandboxes remembered as ready; over it all are forgotten, which costs one load each.
const readyMost = 4096

// readiness remembers which sandboxes were ready, so that a command for one costs no load. It is a hint: the toolbox is asked
// each time, unless a connection to it says the same, and a sandbox whose toolbox does not answer is loaded again.
type readiness struct {
	log    eventlog.Log
	loaded func(sandbox.Sandbox)

	mu    sync.Mutex
	ready map[subject.Aggregate]place
}

// place is where a sandbox that was ready is: its worker, and which instance of a toolbox answered last, "" where none did.
type place struct {
	worker, instance string
	// env is what its programs find their way out by; nil: they have none. taken are the names of its environment.
	env   map[string]string
	taken []string
}

func newReadiness(log eventlog.Log, loaded func(sandbox.Sandbox)) *readiness {
	if loaded == nil {
		loaded = func(sandbox.Sandbox) {}
	}
	return &readiness{log: log, loaded: loaded, ready: map[subject.Aggregate]place{}}
}

// worker of a sandbox that is known to be ready, else "".
func (r *readiness) worker(agg subject.Aggregate) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ready[agg].worker
}

// instance that answered last for a sandbox that is known to be ready, else "".
func (r *readiness) instance(agg subject.Aggregate) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ready[agg].instance
}

// met takes which instance has answered.
func (r *readiness) met(agg subject.Aggregate, instance string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, ok := r.ready[agg]; ok {
		p.instance = instance
		r.ready[agg] = p
	}
}

// environment is what programs of a sandbox that is known to be ready find their way out by; opened: it has one, whatever was read of it.
func (r *readiness) environment(agg subject.Aggregate, opened bool) map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.ready[agg]
	if p.env == nil && opened {
		return wayout.Environment(p.taken)
	}
	return p.env
}

func (r *readiness) forget(agg subject.Aggregate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.ready, agg)
}

// load reads the sandbox from the log and remembers it where it is ready. One that does not exist was never requested.
func (r *readiness) load(ctx context.Context, agg subject.Aggregate) (sandbox.Sandbox, error) {
	h, err := eventlog.Known(ctx, r.log, agg)
	return r.take(agg, h, err)
}

// current is load of all that was recorded before the call.
func (r *readiness) current(ctx context.Context, agg subject.Aggregate) (sandbox.Sandbox, error) {
	h, err := eventlog.Current(ctx, r.log, agg)
	return r.take(agg, h, err)
}

func (r *readiness) take(agg subject.Aggregate, h eventlog.History, err error) (sandbox.Sandbox, error) {
	if err != nil {
		return sandbox.Sandbox{}, wrap("load sandbox", err)
	}
	s, err := sandbox.Fold(h)
	if err != nil {
		return s, wrap("fold sandbox", err)
	}
	r.loaded(s)
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.ready[agg]
	delete(r.ready, agg)
	if s.State == sandbox.Ready {
		if len(r.ready) >= readyMost {
			clear(r.ready)
		}
		p := place{worker: s.Worker, instance: before.instance, taken: s.EnvKeys}
		if s.Egress != nil {
			p.env = wayout.Environment(s.EnvKeys)
		}
		r.ready[agg] = p
	}
	return s, nil
}
