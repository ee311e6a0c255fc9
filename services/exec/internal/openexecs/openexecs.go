// Package openexecs finds the execs of a sandbox that have no end in the log.
package openexecs

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// Of lists the open execs of a sandbox by the last event of each, which is one request however long their histories are. More
// than 1,024 execs of one sandbox are read event by event instead.
func Of(ctx context.Context, js jetstream.JetStream, tenant, sandbox string) ([]subject.Aggregate, error) {
	filter := subject.ExecsOf(tenant, sandbox)
	last, err := directget.Last(ctx, js, topology.StreamEvents, filter, lastMax)
	if err != nil || len(last) == lastMax {
		return scan(ctx, js, filter)
	}
	types := make(map[string]string, len(last))
	for _, m := range last {
		types[m.Subject] = m.Header.Get(envelope.HeaderType)
	}
	return open(types)
}

// lastMax is how many subjects the server gives the last message of in one answer.
const lastMax = 1024

// scan reads every event of the sandbox's execs, in pages.
func scan(ctx context.Context, js jetstream.JetStream, filter string) ([]subject.Aggregate, error) {
	last := map[string]string{}
	err := directget.Each(ctx, js, topology.StreamEvents, filter, 1, func(m directget.Message) error {
		last[m.Subject] = m.Header.Get(envelope.HeaderType)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	return open(last)
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
)

func over(typ string) bool { return typ == completed || typ == lost }
