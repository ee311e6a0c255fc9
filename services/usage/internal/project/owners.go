package project

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/metering"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// ownersKept bounds each of the two generations of owners, about 14 MB together.
const ownersKept = 32_768

// owners knows for whom each sandbox runs. What it has seen pass by, or looked up, it keeps for a while: two maps, of which the
// older one goes when the younger is full.
type owners struct {
	js           jetstream.JetStream
	young, older map[sandbox]Owner
}

type sandbox struct{ tenant, id string }

func newOwners(js jetstream.JetStream) *owners { return &owners{js: js, young: map[sandbox]Owner{}} }

func (o *owners) put(agg subject.Aggregate, v Owner) { o.keep(sandbox{agg.Tenant, agg.Sandbox}, v) }

func (o *owners) keep(k sandbox, v Owner) {
	if len(o.young) >= ownersKept {
		o.older, o.young = o.young, make(map[sandbox]Owner, ownersKept)
	}
	o.young[k] = v
}

// of gives the owner of the aggregate's sandbox, from the first event of its history where it is not known. A sandbox without
// a history has none.
func (o *owners) of(ctx context.Context, agg subject.Aggregate) (Owner, error) {
	k := sandbox{agg.Tenant, agg.Sandbox}
	if v, ok := o.young[k]; ok {
		return v, nil
	}
	if v, ok := o.older[k]; ok {
		o.keep(k, v)
		return v, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	m, err := o.first(ctx, subject.Sandbox(agg.Tenant, agg.Sandbox).Subject())
	if err != nil {
		return Owner{}, fmt.Errorf("look up the owner of a sandbox: %w", err)
	}
	var v Owner
	// A first event that does not decode is dead-lettered by itself; it says nothing about an owner.
	if m != nil {
		if e, err := envelope.Decode(m.Subject, m.Seq, m.Header, m.Data); err == nil {
			if b, ok := e.Body.(*eventsv1.SandboxRequested); ok {
				v = metering.OwnerOf(b)
			}
		}
	}
	o.keep(k, v)
	return v, nil
}

// first gives the first event of a subject, nil without one. A replica that is behind may not have it yet, and what is not there
// is remembered, so that is asked of the leader.
func (o *owners) first(ctx context.Context, subj string) (*directget.Message, error) {
	page, _, err := directget.Page(ctx, o.js, topology.StreamEvents, subj, 1, 1, 1)
	if err != nil {
		return nil, err
	}
	if len(page) > 0 {
		return &page[0], nil
	}
	return directget.Leader(ctx, o.js, topology.StreamEvents, subj, 1)
}
