// Package locate knows whose a sandbox is and where its toolbox answers, as the log says it.
package locate

import (
	"context"
	"sync"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// most bounds the sandboxes remembered; over it all are forgotten, which costs one look-up each.
const most = 4096

// Log is what is read.
type Log interface {
	Load(ctx context.Context, agg subject.Aggregate) (eventlog.History, error)
	Find(ctx context.Context, subjectFilter string) (subject.Aggregate, error)
}

// Locator remembers what it has looked up. It may be used concurrently.
type Locator struct {
	log Log

	mu     sync.Mutex
	owners map[string]string
	places map[string]*eventsv1.Endpoint
}

// New remembers nothing yet.
func New(log Log) *Locator {
	return &Locator{log: log, owners: map[string]string{}, places: map[string]*eventsv1.Endpoint{}}
}

// Owner is the tenant of a sandbox, which never changes. An unknown one is fault.NotFound.
func (l *Locator) Owner(ctx context.Context, box string) (string, error) {
	l.mu.Lock()
	tenant, ok := l.owners[box]
	l.mu.Unlock()
	if ok {
		return tenant, nil
	}
	agg, err := l.log.Find(ctx, subject.AnyTenantSandbox(box))
	if fault.CodeOf(err) == fault.NotFound {
		return "", fault.Newf(fault.NotFound, fault.ReasonSandboxNotFound, "there is no sandbox %s", box)
	}
	if err != nil {
		return "", err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.owners) >= most {
		clear(l.owners)
	}
	l.owners[box] = agg.Tenant
	return agg.Tenant, nil
}

// Endpoint is where the sandbox's agent answers; nil: a keeper does, or nobody does now.
func (l *Locator) Endpoint(ctx context.Context, box string) (*eventsv1.Endpoint, error) {
	l.mu.Lock()
	e, ok := l.places[box]
	l.mu.Unlock()
	if ok {
		return e, nil
	}
	tenant, err := l.Owner(ctx, box)
	if err != nil {
		return nil, err
	}
	h, err := l.log.Load(ctx, subject.Sandbox(tenant, box))
	if err != nil {
		return nil, err
	}
	s, err := sandbox.Show(h)
	if err != nil {
		return nil, err
	}
	l.Note(s)
	return s.Endpoint, nil
}

// Note takes a sandbox that was just loaded. Only a ready one is remembered: any other is on its way to another place, or to none.
func (l *Locator) Note(s sandbox.Sandbox) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.State != sandbox.Ready {
		delete(l.places, s.ID)
		return
	}
	if len(l.places) >= most {
		clear(l.places)
	}
	l.places[s.ID] = s.Endpoint
}

// Forget makes the next Endpoint look it up anew.
func (l *Locator) Forget(box string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.places, box)
}
