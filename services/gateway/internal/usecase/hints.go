package usecase

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

const (
	// hintsMost bounds the sandboxes remembered as ready; over it all are forgotten, which costs one load each.
	hintsMost = 4096
	// hintTime is how long one is remembered at most: live events, which end it at once, may be lost.
	hintTime = 5 * time.Second
)

// hints are sandboxes that were ready a moment ago, so that an exec need not read one before its command is sent. A hint decides
// nothing: the worker that gets the command knows the sandbox, and refuses for the same reasons.
type hints struct {
	mu    sync.Mutex
	ready map[subject.Aggregate]hint
}

type hint struct {
	sandbox sandbox.Sandbox
	until   time.Time
}

// follow forgets a sandbox at its next event, until base ends. Without a connection nothing is remembered for long.
func (h *hints) follow(base context.Context, nc *nats.Conn) error {
	sub, err := nc.Subscribe(subject.Live(subject.AllSandboxes()), func(m *nats.Msg) {
		if agg, err := subject.ParseEvent(m.Subject); err == nil {
			h.forget(agg)
		}
	})
	if err != nil {
		return err
	}
	context.AfterFunc(base, func() { _ = sub.Unsubscribe() })
	return nil
}

func (h *hints) forget(agg subject.Aggregate) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.ready, agg)
}

func (h *hints) get(agg subject.Aggregate) (sandbox.Sandbox, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known, ok := h.ready[agg]
	return known.sandbox, ok && time.Now().Before(known.until)
}

func (h *hints) put(s sandbox.Sandbox) {
	if s.State != sandbox.Ready {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ready) >= hintsMost {
		clear(h.ready)
	}
	h.ready[subject.Sandbox(s.Tenant, s.ID)] = hint{sandbox: s, until: time.Now().Add(hintTime)}
}

// locateForExec is locate, by a hint where there is one.
func (u *UseCases) locateForExec(ctx context.Context, p principal.Principal, id string) (sandbox.Sandbox, error) {
	agg, err := u.aggregate(ctx, p, id)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	if s, ok := u.hints.get(agg); ok {
		return s, nil
	}
	s, err := u.load(ctx, agg)
	if err == nil {
		u.hints.put(s)
	}
	return s, err
}
