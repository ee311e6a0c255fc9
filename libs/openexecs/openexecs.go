// Package openexecs finds the execs, and the sandboxes, that have no end in the log.
package openexecs

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// Of lists the open execs of a sandbox. None that began before the call is missed; one that has ended a moment ago may still be listed.
func Of(ctx context.Context, js jetstream.JetStream, tenant, sandbox string) ([]subject.Aggregate, error) {
	return current(ctx, js, subject.ExecsOf(tenant, sandbox))
}

// Last is when the last event of any exec of a sandbox was recorded, by the clock of the log and as its leader has it; zero: there is none.
func Last(ctx context.Context, js jetstream.JetStream, tenant, sandbox string) (time.Time, error) {
	m, err := directget.LeaderLast(ctx, js, topology.StreamEvents, subject.ExecsOf(tenant, sandbox))
	if err != nil || m == nil {
		return time.Time{}, err
	}
	return m.Stored, nil
}

// Sandboxes lists the sandboxes that have no end in the log.
func Sandboxes(ctx context.Context, js jetstream.JetStream) ([]subject.Aggregate, error) {
	return current(ctx, js, subject.AllSandboxes())
}

func current(ctx context.Context, js jetstream.JetStream, filter string) ([]subject.Aggregate, error) {
	end, err := directget.LeaderLast(ctx, js, topology.StreamEvents, filter)
	if err != nil || end == nil {
		return nil, err
	}
	// A replica that has the last of these events has all of them.
	for wait := firstLag; ; wait = min(2*wait, maxLag) {
		seen, err := look(ctx, js, filter)
		if err != nil {
			return nil, err
		}
		if seen.upTo >= end.Seq {
			return open(seen.types)
		}
		if pause.For(ctx, wait) != nil {
			return nil, fmt.Errorf("no replica of the log shows event %d: %w", end.Seq, ctx.Err())
		}
	}
}

// A replica that lags is asked again after a pause that grows from the first to the second.
const (
	firstLag = 5 * time.Millisecond
	maxLag   = 500 * time.Millisecond
)

// lastMax is how many subjects the server gives the last message of in one answer.
const lastMax = 1024

// seen is the type of the last event of each subject, as a replica has them up to a sequence.
type seen struct {
	types map[string]string
	upTo  uint64
}

func (s *seen) add(m directget.Message) {
	s.types[m.Subject] = m.Header.Get(envelope.HeaderType)
	s.upTo = max(s.upTo, m.Seq)
}

// look reads the last event of each exec, which is one request however long their histories are. More than 1,024 execs are read event by
// event instead.
func look(ctx context.Context, js jetstream.JetStream, filter string) (seen, error) {
	s := seen{types: map[string]string{}}
	last, err := directget.Last(ctx, js, topology.StreamEvents, filter, lastMax)
	if err == nil && len(last) < lastMax {
		for _, m := range last {
			s.add(m)
		}
		return s, nil
	}
	err = directget.Each(ctx, js, topology.StreamEvents, filter, 1, func(m directget.Message) error {
		s.add(m)
		return nil
	})
	if err != nil {
		return s, fmt.Errorf("read events: %w", err)
	}
	return s, nil
}

// open names the aggregates whose last event, of the type given for each subject, is no end.
func open(types map[string]string) ([]subject.Aggregate, error) {
	var open []subject.Aggregate
	for s, typ := range types {
		if over(typ) {
			continue
		}
		agg, err := subject.ParseEvent(s)
		if err != nil {
			return nil, err
		}
		open = append(open, agg)
	}
	return open, nil
}

var (
	completed = string((&eventsv1.ExecCompleted{}).ProtoReflect().Descriptor().FullName())
	lost      = string((&eventsv1.ExecLost{}).ProtoReflect().Descriptor().FullName())
	destroyed = string((&eventsv1.SandboxDestroyed{}).ProtoReflect().Descriptor().FullName())
)

func over(typ string) bool { return typ == completed || typ == lost || typ == destroyed }
