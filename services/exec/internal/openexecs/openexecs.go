// Package openexecs finds the execs of a sandbox that have no end in the log.
package openexecs

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// Of lists the open execs of a sandbox by the last event of each, which is one request however long their histories are. More
// than 1,024 execs of one sandbox are read event by event instead.
func Of(ctx context.Context, js jetstream.JetStream, tenant, sandbox string) ([]subject.Aggregate, error) {
	filter := subject.ExecsOf(tenant, sandbox)
	var open []subject.Aggregate
	msgs, err := jetstreamext.GetLastMsgsFor(ctx, js, topology.StreamEvents, []string{filter})
	if err != nil {
		return nil, fmt.Errorf("read last events: %w", err)
	}
	for m, err := range msgs {
		switch {
		case errors.Is(err, jetstreamext.ErrNoMessages):
			return nil, nil
		case err != nil:
			return scan(ctx, js, filter)
		case over(m.Header.Get(envelope.HeaderType)):
			continue
		}
		agg, err := subject.ParseEvent(m.Subject)
		if err != nil {
			return nil, err
		}
		open = append(open, agg)
	}
	return open, nil
}

// scan reads every event of the sandbox's execs, in pages.
func scan(ctx context.Context, js jetstream.JetStream, filter string) ([]subject.Aggregate, error) {
	last := map[string]string{}
	for from := uint64(1); ; {
		msgs, err := jetstreamext.GetBatch(ctx, js, topology.StreamEvents, 1000,
			jetstreamext.GetBatchSubject(filter), jetstreamext.GetBatchSeq(from))
		if err != nil {
			return nil, fmt.Errorf("read events: %w", err)
		}
		n := 0
		for m, err := range msgs {
			if errors.Is(err, jetstreamext.ErrNoMessages) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("read events: %w", err)
			}
			n++
			from = m.Sequence + 1
			last[m.Subject] = m.Header.Get(envelope.HeaderType)
		}
		if n == 0 {
			break
		}
	}
	var open []subject.Aggregate
	for s, typ := range last {
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
