package runner

import (
	"context"
	"sync"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
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
type place struct{ worker, instance string }

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
		r.ready[agg] = place{worker: s.Worker, instance: before.instance}
	}
	return s, nil
}
